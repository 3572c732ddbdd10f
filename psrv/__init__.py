"""The parameter server; empty in this version: the plan says so where a manifest asks for it."""
