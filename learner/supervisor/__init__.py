"""The program of the job script: it starts an attempt's steps, watches them and judges the end.

Imports `learner.job`, `learner.storage` and `learner.system`, and never torch or MPI. What passes
through are the plan and the statuses of the learners on the way in, directives and the verdict on
the way out.
"""
