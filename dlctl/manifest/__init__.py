"""The manifest as a validated, frozen model, with its errors in place.

Imports pydantic, YAML and the contract; knows nothing about sites, plans and networks. The input
is text on the way in, and a `Manifest` or sentences with line numbers on the way out.
"""
