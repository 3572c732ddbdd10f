"""The server of a node: primary and forwarder of shards, connections to other nodes, snapshots.

Imports `psrv.push` and `psrv.transport`. What passes through are frames from other nodes, totals on
their way to a primary, and the membership of nodes.
"""
