"""The global cursor and the parameter server.

A manifest's `parameter_server` starts one server per node; learners reach it through `psrv.client`.
The cursor, `psrv.cursor_file`, also works without a server.
"""
