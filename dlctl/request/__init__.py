"""Everything that a submission sends, built from the user's folder: plan, script, code, runtime.

Imports `dlctl.plan`, `dlctl.manifest` and `dlctl.files`. Reads local files and uses no network,
except to read the files of earlier attempts. What passes through is a `Request`.
"""
