"""The `spark` profile: a deterministic agentic-coding work-set and its scorer."""
