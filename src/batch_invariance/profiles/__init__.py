"""Profiles: each folder holds the knowledge of one kind of task."""
