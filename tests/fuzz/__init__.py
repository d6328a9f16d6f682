"""Seeded fuzzing of every parser; see `targets` for what is asked of each.

`PYTHONPATH=src:tests python -m fuzz --help` runs it by hand for as long as you like.
"""
