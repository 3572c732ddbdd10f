"""Curves and answers in the terminal: what `dlctl watch` draws.

Imports `dlctl.outputs` and `dlctl.series`. What passes through are frames: lists of lines that fit
the terminal, made by pure functions from what is known of some trainings.
"""
