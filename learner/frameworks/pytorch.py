"""The built-in PyTorch loop: `framework.job` names the file whose `build` returns the model."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from dlctl import contract
from dlctl.contract import Plan
from dlctl.contract.programs.advice import more_packages
from learner.errors import Mistake, UserFault
from learner.frameworks.base import FrameworkRunner, Traits
from learner.job.context import starts_mpi

RUNTIME = Path(__file__).resolve().parents[2]


def loop_module(plan: Plan, code: Path) -> ModuleType | None:
    """Return the module by which a framework's folder gives the loop what train.py gives it.

    Raises:
        UserFault: it is neither in the submitted folder nor in the runtime.
    """
    recipe = plan.framework.recipe
    if recipe is None or recipe.loop_module is None:
        return None
    for root in (code, RUNTIME):
        if (path := root / recipe.loop_module).is_file():
            return load_module(path)
    raise UserFault(
        f"the module {recipe.loop_module} of the framework {plan.framework.name!r} was not sent",
        hint="submit or resume where the framework's folder is",
    )


def load_module(path: Path) -> ModuleType:
    """Return a module of a framework's folder, which it sees as a package: `from .other import …`.

    No name in the folder shadows another module.
    """
    package = f"dlctl_framework_{path.parent.name}".replace(".", "_")
    if package not in sys.modules:
        spec = ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [str(path.parent)]
        sys.modules[package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{package}.{path.stem}")


class PyTorch(FrameworkRunner):
    """Runs `learner.train` in the runtime's folder."""

    traits = Traits(in_shell=False, is_our_loop=True)

    def argv(self, plan: Plan, job_dir: Path, attempt: int) -> list[str]:  # noqa: ARG002
        """Return the built-in loop's program."""
        return [sys.executable, "-m", "learner.train", str(job_dir), str(attempt)]

    def folder(self, plan: Plan, job_dir: Path) -> Path:  # noqa: ARG002
        """Return the runtime's folder, so that no user file shadows dlctl's."""
        return Path(plan.runtime_dir)

    def problems(self, plan: Plan, job_dir: Path) -> list[str]:
        """Return missing modules and errors in the user's file."""
        return [*_missing_modules(plan), *_model_file(plan, job_dir)]

    def visible_gpus(self) -> int:
        """Return the number of GPUs that torch sees."""
        if importlib.util.find_spec("torch") is None:
            return 0
        import torch

        return int(torch.cuda.device_count())


def _missing_modules(plan: Plan) -> list[str]:
    needed = ["numpy", "torch", "h5py"] + ["mpi4py"] * starts_mpi(plan)
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if not missing:
        return []
    names = ", ".join(missing)
    return [f"Python {sys.executable!r} lacks {names}.\n{more_packages(plan, names)}"]


def _model_file(plan: Plan, job_dir: Path) -> list[str]:
    name, code = str(plan.framework.job), job_dir / contract.CODE
    try:
        if (module := loop_module(plan, code)) is not None:
            getattr(module, "check", lambda *_: None)(plan, code)
            return []
        compile((code / name).read_bytes(), name, "exec", dont_inherit=True)
    except UserFault as fault:
        what = " ".join(fault.message.split())
        return [Mistake(f"{what}\n{fault.hint or f'Correct {name} and submit again.'}")]
    except SyntaxError as error:
        line = (error.text or "").strip()
        return [Mistake(
            f"{name}:{error.lineno}: {type(error).__name__}: {error.msg}: `{line}`\n"
            f"Correct {name} (the node runs Python {sys.version.split()[0]}) and submit again."
        )]  # fmt: skip
    except (OSError, ValueError) as error:
        return [Mistake(
            f"framework.job {name!r} can't be read: {' '.join(str(error).split())}\n"
            "Name a Python file of the submitted folder (.gitignore and .dlctlignore leave out)."
        )]  # fmt: skip
    return []
