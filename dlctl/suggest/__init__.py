"""Advice from this user's earlier trainings: what a manifest should ask for, and the evidence.

`judge` and its neighbours make suggestions of what attempts have used, as their verdicts have told
and `dlctl.record.used` keeps it, and `edit` writes them into a manifest. All of it is pure. Passes
through: `Past` and `Suggestion`.
"""
