"""What runs on the nodes: supervisor, watchdog, launcher, learners."""
