"""The commands of `dlctl search`."""
