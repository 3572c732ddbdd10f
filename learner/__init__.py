"""The node side: the supervisor, the agent beside each learner, and the learners."""
