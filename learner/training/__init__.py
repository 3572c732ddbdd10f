"""The built-in training loop of synchronous learners, and the parts that both loops share.

Imports the rooms below it: data, model, data_parallel, checkpoint and export. It handles the plan's
settings, batches, metrics and checkpoints.
"""
