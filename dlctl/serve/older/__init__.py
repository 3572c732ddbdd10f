"""`/v1`: the routes of the service's open successor (FfDL), for its own clients.

Where its published description and its command-line client differ, this does what the client reads:
numbers for the time of a line, times that grow strictly from line to line, frames of at most 8 KiB.
"""
