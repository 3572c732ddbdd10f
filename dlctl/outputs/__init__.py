"""Reads the products of a training: logs, results, checkpoints and exported models.

Imports `dlctl.lifecycle` for an open site, and `dlctl.files`. What passes through are lines, files
verified by their digests, and reports.
"""
