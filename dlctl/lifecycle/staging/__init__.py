"""Stage training data in before a job, and results out after it, where the nodes can't."""
