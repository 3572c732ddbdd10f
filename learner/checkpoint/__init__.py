"""Save and load the state of all learners with a short pause; the writing happens beside training.

Imports torch, `learner.exchange` and `learner.checkpoint_files`. What passes through is a tree of
tensors and plain values on the way in, and shares for the writer process on the way out.
"""
