"""The agent that runs beside each learner: preflight, start and watchdog.

Imports `learner.job` and `learner.system`, and never torch: it must survive whatever happens to
the learner. It handles one child process, its exit and its last lines.
"""
