"""The scheduler of a machine that has none: a runner process, and records of its jobs.

Imports the standard library only, because the login side starts it with any Python. It handles one
JSON record for each job, and the job script's process group.
"""
