"""The command that brings what a training has made to this machine."""
