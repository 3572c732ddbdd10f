"""The logs of a training: read them at the site, merge them by time, make them fit to be shown.

What may import this room: `outputs`, `search` and all that stands above. It imports `files`,
`transport` and `contract`. Bytes pass through it as the programs wrote them, until `shown` makes
text of them that can't drive a terminal.
"""
