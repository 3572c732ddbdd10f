"""The global cursor: each chunk of the data goes to exactly one learner, whoever dies.

Imports numpy and mpi4py, and no other room of psrv. What passes through are chunks on the way out,
and the state that a checkpoint keeps.
"""
