"""A process's view of its job: its attempt and rank, its environment, and its status files.

Imports `learner.system` and the contract, and never torch or MPI, so that a watchdog stays light.
It handles the plan, a process's place among the learners, directives and statuses.
"""
