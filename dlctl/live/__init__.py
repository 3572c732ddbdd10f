"""Keeps trainings as new as their sites tell, for every view that stays: one reader for all.

Imports `dlctl.service` and what is below it. What passes through are records, and `Training`s with
their metrics, details and logs; terminal and dashboard draw them.
"""
