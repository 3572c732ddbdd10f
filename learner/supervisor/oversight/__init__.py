"""What the supervisor watches learners for while they train: hangs, and the manifest's guards."""
