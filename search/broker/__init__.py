"""A broker: takes tasks from models, gives them to workers, and keeps the results.

`queues` holds the four queues of the paper and every rule about them. It is pure: no clock, disk or
network. `service` answers calls by it, and lets an answer out only when what it says is on disk.
"""
