"""Searches: read search.yml, send the hub as a training, add and end workers, read the trials.

Imports `dlctl.request`, `dlctl.lifecycle` and what lies below them. What passes to the nodes is
`dlctl.contract.search.Spec`; what comes back are the trials that the model has written down.
"""

from __future__ import annotations
