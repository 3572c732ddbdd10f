"""The program beside each learner: preflight, start and watchdog.

Imports `learner.job` and `learner.system`, and never torch: it must outlive whatever happens to
the learner. What passes through is one child process, its exit and its last lines.
"""
