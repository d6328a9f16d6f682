"""Edges of what an endpoint's facts prove: the gauge, its traffic, its wants, its lifetimes."""
