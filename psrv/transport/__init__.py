"""How the servers of a training's nodes talk to each other: frames over TCP, or over MPI."""
