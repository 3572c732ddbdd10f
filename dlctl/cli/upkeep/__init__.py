"""Commands that keep sites and records in order: `doctor`, `adopt`, `du`, `prune`."""
