"""Measures a learner's use of its node: processes, network, control group, GPUs.

Imports the contract and `learner.system`. A probe returns numbers by name each time it is asked,
and keeps its files open in between. What a node can't tell is left out.
"""
