"""Site files: found, read, written, and validated.

Imports pydantic and YAML. What passes through is a `Site`.
"""
