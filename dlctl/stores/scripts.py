"""Turn the data stores of a plan into scripts in the job directory. Reads only the templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dlctl import contract
from dlctl.contract.stores import LOAD, MOUNTED_STORES, STORE, store_script
from dlctl.errors import PlanError
from dlctl.script_templates import render_template
from dlctl.stores.types import find_type


def with_scripts(
    plan: contract.Plan, folder: Path, secret_names: Mapping[int, list[str]],
    endpoints: Mapping[str, str], via: str, cache_limit_bytes: int | None = None,
) -> contract.Plan:  # fmt: skip
    """Return the plan whose stores know their scripts, settings and references to credentials.

    Args:
        plan: A plan without them.
        folder: The training's folder, which may have types of its own.
        secret_names: For each store by its position the keys whose values go as files.
        endpoints: Addresses that the site reaches in another way: from → to.
        via: Who moves the data at this site.
        cache_limit_bytes: How much its cache may take.

    Raises:
        PlanError: this machine is to move the data, and can't for a store of this type.
    """
    secrets = f"{plan.root}/secrets/{plan.training_id}"
    stores = []
    for store in plan.data_stores:
        if store.type in MOUNTED_STORES:
            stores.append(store)
            continue
        known = find_type(store.type, folder)
        if via == "laptop" and not known.uses:
            raise PlanError(
                f"the type {store.type} of data store {store.id} has scripts of its own, which "
                "don't run on this machine",
                hint="set `data_via: node` or `login` in the site's file",
            )
        defaults = {k: key.default for k, key in known.connection.items() if key.default}
        connection = {
            k: rewritten(v, endpoints) for k, v in {**defaults, **store.connection}.items()
        }
        if endpoints:
            connection["endpoints"] = "\n".join(f"{old} {new}" for old, new in endpoints.items())
        used = {LOAD: store.training_data, STORE: store.training_results}
        stores.append(replace(
            store, connection=connection, via=via, needs=list(known.schema.needs),
            scripts=[name for name in known.scripts if used[name] is not None],
            cache_limit_bytes=cache_limit_bytes, uses=known.uses,
            secrets={key: f"file:{secrets}/data_stores.{store.position}.{key}"
                     for key in secret_names.get(store.position, ())},
        ))  # fmt: skip
    return replace(plan, data_stores=stores)


def rewritten(value: str, endpoints: Mapping[str, str]) -> str:
    """Return an address as the site reaches it; any other value stays."""
    for old, new in endpoints.items():
        if value == old or value.startswith(f"{old.rstrip('/')}/"):
            return new.rstrip("/") + value[len(old.rstrip("/")) :]
    return value


def render_scripts(plan: contract.Plan, folder: Path) -> dict[str, str]:
    """Return the text of each script by its path in the job directory."""
    found = {}
    for store in plan.data_stores:
        if store.scripts:
            known = find_type(store.type, folder)
            for name in store.scripts:
                text = render_template(known.scripts[name], store=store, type=known, plan=plan)
                found[store_script(store.position, name)] = text
    return found
