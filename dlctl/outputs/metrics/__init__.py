"""The metrics of a training, read from its site: lines, bins of long curves, exports.

Imports `dlctl.files`, `dlctl.lifecycle` and `dlctl.series`. What passes through are entries of the
one list, and the `Run` that they make.
"""
