"""What a training produces: logs, results, checkpoints and exported models, read from here.

Imports `dlctl.lifecycle` for an open site, and `dlctl.files`. What passes through are lines, files
verified by their digests, and reports.
"""
