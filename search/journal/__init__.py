"""The changes that a broker has acknowledged: one log for each incarnation, and a lease on it.

An incarnation appends to its own log alone. It acknowledges nothing before the record is on the
disk, and nothing once its lease has lapsed. Its successor waits for that, reads the log, seals it
and begins its own log with a snapshot. Nothing depends on locks of the file system.
"""
