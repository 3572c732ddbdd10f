"""Choose one of a site's environments by the framework and the version that a manifest names. Pure.

`framework.version` and `image_tag` are names of container images in the service: `1.5.0-py3`. A
site's file says which of its environments serve which of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlctl import contract

if TYPE_CHECKING:
    from dlctl.manifest.model import Manifest
    from dlctl.sites.model import EnvironmentSettings, Site


def chosen_environment(
    manifest: Manifest, site: Site, framework: str
) -> tuple[contract.Environment | None, bool, list[str]]:
    """Return the site's environment for a manifest, whether its version is the one, and remarks.

    The environment is None if the site has none for this framework. If none has the version, the
    first one that has the framework is taken, and a remark says so.

    Args:
        framework: the framework's folder, for which `framework.name` may be another word.
    """
    section = manifest.framework
    names = {framework.lower(), section.name.lower()}
    there = [
        (name, settings, versions) for name, settings in site.environments.items()
        for known, versions in settings.frameworks.items() if known.lower() in names
    ]  # fmt: skip
    words = [word for word in (section.image_tag, section.version) if word]
    for word in words:
        for name, settings, versions in there:
            if any(_is_version(word, version) for version in versions):
                return environment_of(settings, settings.python or "", name), True, []
    if not there:
        tag = section.image_tag
        remark = f"The site {site.name} has no environment for the image_tag {tag}: it is ignored."
        return None, False, [remark] if tag else []
    name, settings, _ = there[0]
    if not words:
        return environment_of(settings, settings.python or "", name), True, []
    known = "; ".join(f"{', '.join(versions)} ({each})" for each, _, versions in there)
    remark = (
        f"The site {site.name} has {framework} in {known}, not in {' or '.join(words)}: "
        f"it runs in the environment {name}."
    )
    return environment_of(settings, settings.python or "", name), False, [remark]


def _is_version(wanted: str, there: str) -> bool:
    """Return whether a word means a version: `2` means 2.21, and `1.5.0-py3` means 1.5."""
    if wanted.lower() == there.lower():
        return True
    one, other = (word.partition("-")[0].split(".") for word in (wanted, there))
    both = list(zip(one, other, strict=False))
    return wanted[:1].isdigit() and all(mine == theirs for mine, theirs in both)


def environment_of(
    settings: EnvironmentSettings, python: str, name: str = ""
) -> contract.Environment:
    """Return an environment of a site's file as plans have it."""
    return contract.Environment(
        python=python, modules=list(settings.modules), setup=list(settings.setup),
        container=list(settings.container), variables=dict(settings.variables), name=name,
    )  # fmt: skip
