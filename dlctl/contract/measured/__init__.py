"""Beside lines of metrics: bins of long curves, names of utilisation, log parsers.

Imports the standard library only. What passes through are records and names that nodes write and
the login side reads.
"""
