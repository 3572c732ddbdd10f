"""Commands about stored models, and how a version is shown."""
