"""One shard of the parameters in shared memory: its file format, its members and its blocks.

Imports the standard library, numpy and torch, and nothing else of psrv but its errors. What passes
through are blocks of values, each read and written whole.
"""
