"""The sections about a training that runs: retries, hangs, ends, notices, its output's metrics."""
