"""The doctor: tests each link from this machine to a learner in order, and says what to fix.

Imports `dlctl.lifecycle`, `dlctl.request`, `dlctl.site_admin` and what lies below them. What passes
through is a `Link`: a state, what was seen, and what to do.
"""
