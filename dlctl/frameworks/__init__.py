"""Frameworks: read the folders that describe them, and make each learner's train.sh.

Imports the manifest's model, the sandboxed templates and the contract. What passes out is a
`Recipe`, which travels in the plan: the nodes never see a framework's folder.
"""

from __future__ import annotations

from dlctl.frameworks.files import find_framework, framework_of, list_frameworks, no_such
from dlctl.frameworks.model import FrameworkFolder
from dlctl.frameworks.remarks import fixed_paths, lines_of, remarks
from dlctl.frameworks.script import Surroundings, checkpoint_files, make_recipe, train_script

__all__ = [
    "FrameworkFolder", "Surroundings", "checkpoint_files", "find_framework",
    "fixed_paths", "framework_of", "lines_of", "list_frameworks", "make_recipe", "no_such",
    "remarks", "train_script",
]  # fmt: skip
