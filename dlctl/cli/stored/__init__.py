"""Commands about what sites and stores keep: models and data stores, and how both are shown."""
