"""A rehearsal on the nodes: four attempts in one job, and what they have shown.

`stages` decides what each attempt does and what follows it, `drill` disturbs a learner, `report`
measures, and holds the final checkpoint against the undisturbed one. All but the stages' order is
the same code that trains for weeks: the halt and the restarts are those of `learner.lifecycle`.
"""
