"""A rehearsal on the nodes: four attempts in one job, and what they have shown.

`stages` decides what each attempt does, `drill` disturbs a learner, `compare` holds the final
checkpoint against the undisturbed one, `report` measures. All but the stages' order is the same
code that trains for weeks: the halt and the restarts are those of `learner.lifecycle`.
"""
