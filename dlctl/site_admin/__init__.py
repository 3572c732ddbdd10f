"""Add, set up and check a site: scripts for the login node, and parsers of their answers.

Imports `dlctl.sites`, the scripts in `templates/sites` and a transport. What passes through are
questions to a site and findings about it.
"""
