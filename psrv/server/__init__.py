"""The server of a node: primaries and forwarders of shards, connections to other nodes, snapshots.

Imports `psrv.push` and `psrv.transport`. What passes through are frames from other nodes, totals on
their way to a primary, and the placement of shards on nodes.
"""
