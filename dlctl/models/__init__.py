"""Stored models at a site: immutable versions, whose contents are stored once by SHA-256.

Imports `dlctl.outputs`, `dlctl.lifecycle`, `dlctl.request` and `dlctl.files`. What passes through
are versions, references such as `digits@best`, and requests for trainings of a stored version.
"""
