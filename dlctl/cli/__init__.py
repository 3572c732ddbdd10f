"""The command line: one file per command group; only `output.py` prints."""
