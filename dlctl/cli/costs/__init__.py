"""Commands about what a training takes: `rehearse` before it, `report` while it runs and after."""
