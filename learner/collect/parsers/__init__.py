"""The parsers of `evaluation_metrics`: text or event files in, records out.

Imports the contract and `learner.system`. A parser knows no files except those that it parses, and
keeps what it needs between two pieces of a file in its `memory`.
"""
