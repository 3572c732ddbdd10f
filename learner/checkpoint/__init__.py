"""Checkpoints: whole or absent, the newest complete one wins."""
