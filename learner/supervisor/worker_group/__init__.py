"""Learners and servers of a training with a parameter server, each a job step of its own.

Watches them as one group: starts again what died, gives up what dies in vain, moves the shards of a
lost node. Imports the steps and the verdict of the supervisor; what passes through are steps on the
way in, statuses and the placement of shards on the way out.
"""
