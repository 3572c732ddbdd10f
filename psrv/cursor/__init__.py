"""The global cursor: each chunk of the data goes to exactly one learner, even if learners die.

Imports the standard library and `psrv.errors`. What passes through are chunks on the way out, and
the state that a checkpoint keeps.
"""
