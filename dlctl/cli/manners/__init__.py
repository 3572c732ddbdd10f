"""The user's settings, and help outside the program."""
