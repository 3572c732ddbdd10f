"""The nameserver: knows which brokers live, from their heartbeats alone."""
