"""`python -m batch_invariance`."""

from __future__ import annotations

from batch_invariance.cli.main import entry_point

if __name__ == "__main__":
    entry_point()
