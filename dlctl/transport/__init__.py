"""Ways to run a shell script on a site. `open_transport` picks one by its kind."""
