"""How the processes of a search talk: messages, channels, and where each of them listens."""
