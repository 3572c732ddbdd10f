"""The description that is committed is the one that the code has."""

import json

import pytest
from repository import REPOSITORY

from dlctl.serve import openapi
from dlctl.serve.app import OPERATIONS
from dlctl.serve.openapi import describe, page


def test_the_committed_description_is_current():
    committed = json.loads((REPOSITORY / "docs/openapi.json").read_text())
    assert committed == describe(OPERATIONS), "make docs"


def test_each_reference_leads_somewhere_and_nothing_is_left_over():
    found = describe(OPERATIONS)
    known = {f"#/components/{kind}/{name}" for kind in ("schemas", "responses")
             for name in found["components"][kind]}  # fmt: skip
    references = set()

    def walk(value):
        if isinstance(value, dict):
            if "$ref" in value:
                references.add(value["$ref"])
            references.update(value.get("discriminator", {}).get("mapping", {}).values())
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(found)
    assert references == known


def test_each_schema_has_a_name_that_generators_can_take():
    schemas = describe(OPERATIONS)["components"]["schemas"]
    names = [each.get("title", name) for name, each in schemas.items()]
    assert all(name.isidentifier() for name in names)
    assert len({name.lower() for name in names}) == len(names)


def test_two_schemas_never_share_a_name():
    with pytest.raises(AssertionError, match="two schemas"):
        openapi._add({"Made": {"type": "object"}}, "Made", {"type": "string"})


def test_the_page_shows_each_operation_and_loads_nothing():
    shown = page(describe(OPERATIONS))
    assert all(f"{each.method} {each.path}" in shown for each in OPERATIONS)
    assert "<script" not in shown and "http" not in shown.replace("lang=en", "")
