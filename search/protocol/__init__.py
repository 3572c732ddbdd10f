"""Messages, channels and addresses of the processes of a search.

The .proto file below this folder is the protocol. `.ci/make-protocol` compiles it to descriptors,
from which `messages` makes its classes: no generated code depends on a node's version of protobuf.
Every connection uses mutual TLS, and a caller's certificate says what it may ask.
"""
