"""Watch learners while they train: for hangs, plateaus and the limits of the manifest."""
