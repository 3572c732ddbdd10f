"""The messages and enumerations of `search.v1`, made from its compiled descriptors.

`messages.pyi` lists them for type checkers. `.ci/make-protocol` writes both.
"""

from __future__ import annotations

from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

_COMPILED = Path(__file__).with_name("search.binpb")


def _load() -> None:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(_COMPILED.read_bytes()).file
    for each in files:
        pool.Add(each)
    for each in files:
        file = pool.FindFileByName(each.name)
        globals()["DESCRIPTOR"] = file
        for name, message in file.message_types_by_name.items():
            globals()[name] = message_factory.GetMessageClass(message)
        for name, enum in file.enum_types_by_name.items():
            globals()[name] = EnumTypeWrapper(enum)
            for value in enum.values:
                globals()[value.name] = value.number


_load()
