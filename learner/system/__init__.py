"""The operating system's means: signals, process groups, memory, disk and networks.

Imports nothing of ours but `learner.errors`, and knows nothing of jobs. What passes through are
numbers, paths and flags.
"""
