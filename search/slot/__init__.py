"""The process in which tasks run, one after another; it never loads gRPC.

A worker starts it by exec, speaks to it over a socket pair, and ends its whole process group if a
task goes wrong. Imports `search.tasks` and the standard library, and whatever the tasks import.
"""
