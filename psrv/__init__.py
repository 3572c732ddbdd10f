"""The global cursor and the parameter server, which learners reach through `psrv.client`."""
