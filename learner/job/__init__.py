"""Which job, attempt and learner this process belongs to, and the files it tells about itself in.

Imports `learner.system` and the contract, and never torch or MPI, so that a watchdog stays light.
What passes through are the plan, a process's place among the learners, directives and statuses.
"""
