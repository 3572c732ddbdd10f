"""Commands that show trainings as pictures: `dashboard` in the browser.

Imports `dlctl.dashboard` only when one of them runs; no other command gets slower.
"""
