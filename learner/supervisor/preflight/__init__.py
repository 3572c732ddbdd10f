"""The supervisor's part of the preflight: judge the reports of the ranks (`learner.agent`)."""
