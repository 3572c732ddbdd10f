"""What a push does to the parameters: the solvers, their update rules, and the same in C.

Imports torch and `psrv.shard`. What passes through are a block's values, the pushed values and the
solver's own state.
"""
