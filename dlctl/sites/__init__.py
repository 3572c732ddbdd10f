"""What a site offers: its file, found, read and written, and the validated model of it.

Imports pydantic and YAML. What passes through is a `Site`.
"""
