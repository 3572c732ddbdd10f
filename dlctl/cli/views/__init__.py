"""Views of a training, its learners, a search and a stored model, for people.

The commands that show these import a view when they run; each view prints by `dlctl.cli.output`.
"""
