"""Notices that the nodes send to people: by mail, to a webhook, by a command of the user.

Imports the room job. The supervisor tells it what happened; the job never waits long for it, and
what can't be sent from here is left to the next dlctl command that looks.
"""
