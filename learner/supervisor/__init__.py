"""The supervisor, which the job script runs: it starts an attempt's steps, watches and judges them.

Imports `learner.job`, `learner.storage` and `learner.system`, and never torch or MPI. The plan and
the learners' statuses come in; directives and the verdict go out.
"""
