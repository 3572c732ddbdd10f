"""Searches, from the login side."""
