"""Impure driver: launches one owned server at a time, runs the arms, writes the evidence."""
