"""The worker group: learners and servers of a training with a parameter server, each a job step.

It restarts a process that died, gives one up that dies over and over without progress, and moves
the shards of a lost node. It imports the steps and the verdict of the supervisor; steps come in,
statuses and the placement of shards go out.
"""
