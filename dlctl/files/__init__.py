"""Upload, download and small files over any transport, each written whole.

Imports `dlctl.transport`. What passes through are archives, bytes and digests.
"""
