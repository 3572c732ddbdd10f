"""Brings a learner's push to a shard: at once, in a round of all learners, or held back.

Imports `psrv.solvers` and `psrv.shard`. What passes through are pushes, their versions, and waiting
times.
"""
