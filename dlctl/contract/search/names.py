"""The files of a search in the job directory of its hub."""

from __future__ import annotations

FOLDER = "search"
SPEC = f"{FOLDER}/spec.json"
TRIALS = f"{FOLDER}/trials.jsonl"
"""Every trial that the model has asked for, and its result: the model's own log."""
ENDPOINTS = f"{FOLDER}/endpoints"
"""`nameserver.json` and a file for each broker: where it listens."""
BROKERS = f"{FOLDER}/brokers"
"""The brokers' logs of tasks and results, a folder for each broker."""
KEYS = f"{FOLDER}/tls"
"""The certificates, and keys of mode 0600, of this search alone."""
WORKERS = f"{FOLDER}/workers"
"""A folder for each group of workers: its batch script, and what the scheduler answered."""
TASKS = f"{FOLDER}/tasks"
"""What the tasks' programs print, and keep."""
