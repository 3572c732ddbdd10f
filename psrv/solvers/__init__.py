"""Solvers: what a push does to the parameters, in torch and in C.

Imports torch and `psrv.shard`. What passes through are a block's values, the pushed values and the
solver's own state.
"""
