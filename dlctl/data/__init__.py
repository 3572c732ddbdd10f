"""The data stores of trainings and the caches of sites, asked and changed from this machine.

Imports `dlctl.lifecycle` for an open site. What passes through are answers of stores, and what a
site's cache holds. What a submission itself needs of stores is in `dlctl.lifecycle.staging.stores`.
"""
