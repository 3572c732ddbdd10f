"""The types of data stores: a folder for each.

Imports `dlctl.script_templates` and what is below. What passes through are `StoreType`s, and the
scripts that a training's stores become.
"""
