"""Upkeep: what a site's root holds, what takes room there, what may go, and a record made anew.

Imports `dlctl.models`, `dlctl.data`, `dlctl.lifecycle` and what lies below them. What passes
through is an `Inventory`: the trainings that a site's job directories tell of, and their sizes.
"""
