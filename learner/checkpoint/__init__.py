"""Save and load the state of all learners with a short pause; a process writes during training.

Imports torch, `learner.exchange` and `learner.checkpoint_files`. A tree of tensors and plain values
comes in; shares for the writer process go out.
"""
