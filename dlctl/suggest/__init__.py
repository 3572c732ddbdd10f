"""Advice from this user's earlier trainings: what a manifest should ask for, and the evidence.

`past` distils what the attempts of a training have used, `history` keeps that on this machine,
`judge` and its neighbours make suggestions of it, and `edit` writes them into a manifest. All but
`history` is pure. Passes through: `Past` and `Suggestion`.
"""
