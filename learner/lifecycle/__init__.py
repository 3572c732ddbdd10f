"""The lifecycle manager on the nodes: what follows an attempt that has ended, and who starts it.

`policy` decides, `next_attempt` writes the files of the next attempt, `starters` start it. All
state is in the job directory (IBM Deep Learning Service, "Lifecycle Management"), so that an ending
job, a requeued one and the login side can each do all of it. The receipt of the next attempt is
created exclusively, so that only one of them does.
"""
