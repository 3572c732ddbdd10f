"""The parameter server (not in this version; the manifest key is validated and the plan says so)."""
