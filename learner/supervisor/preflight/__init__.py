"""The supervisor's part of the preflight: whether the learners may start, and on which nodes.

Judges the reports of the ranks and nodes (`learner.agent`). Imports the supervisor's steps, to
check the nodes of a job that has spare ones.
"""
