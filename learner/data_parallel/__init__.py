"""Training with one model replica per learner: gradients, weights and optimizer state in step.

Imports torch and `learner.exchange`, which moves the bytes. What passes through are parameters and
gradients as flat buffers.
"""
