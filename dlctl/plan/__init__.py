"""Every decision about a job: manifest and site become a plan, and the plan a batch script. Pure.

Imports `dlctl.manifest`, `dlctl.sites` and the contract; knows no transport and no clock. Later
stages never compute a rank count, a node count or a path.
"""
