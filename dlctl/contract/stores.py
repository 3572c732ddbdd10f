"""The types of data stores, as both sides know them."""

from __future__ import annotations

MOUNTED_STORES = ("mount_volume", "host_mount")
"""A directory that the nodes see; `connection.path` names it."""
OBJECT_STORES = ("softlayer_objectstore", "swift_datastore", "s3_datastore", "mount_cos")
"""A manifest may name them; no node reads or writes them yet."""
STORE_TYPES = (*MOUNTED_STORES, *OBJECT_STORES)
USABLE_STORES = MOUNTED_STORES
"""The types that nodes read and write; `learner.storage.STORES` has the same names."""
