"""The transport: how the servers of a training's nodes exchange frames, over TCP.

Imports the standard library and `psrv.errors`. What passes through are frames with raw numbers, and
the greetings that open connections.
"""
