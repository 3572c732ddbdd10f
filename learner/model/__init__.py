"""The user's model: the file that builds it, its weights, its learning rate and its device.

Imports torch and `learner.job`. It handles the parts that `build` returns.
"""
