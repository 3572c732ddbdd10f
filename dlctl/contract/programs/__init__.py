"""Facts that both sides read out of users' programs and their output."""
