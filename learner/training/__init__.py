"""The built-in training loop of synchronous learners, and what both loops have in common.

Imports the rooms below it: data, model, data_parallel, checkpoint and export. What passes through
are the plan's settings, batches, metrics and checkpoints.
"""
