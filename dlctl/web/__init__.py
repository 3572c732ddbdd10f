"""Connections, shared by the dashboard and the server of the REST interface."""
