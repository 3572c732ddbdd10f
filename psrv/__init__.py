"""The global cursor, and the first parts of the parameter server, which no manifest starts yet."""
