"""The sections about a training that runs: when it is retried, ended as hung, stopped, told of."""
