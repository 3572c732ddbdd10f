"""The command logs, and how `submit --follow` and others print the logs of a training as they grow.

It imports what reads logs only when a command runs.
"""
