"""What runs on the nodes: the supervisor, the agent beside each learner, and the learners."""
