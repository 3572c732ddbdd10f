"""The REST interface: one process serves one user what that user's commands do.

It has no database of its own: it reads and writes the local record, so that commands and server may
be used at once, and a restart loses nothing.
"""
