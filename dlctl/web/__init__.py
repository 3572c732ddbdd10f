"""What the dashboard and the server of the REST interface share."""
