"""What the node programs of all packages ask of their host. The login side imports none of it."""
