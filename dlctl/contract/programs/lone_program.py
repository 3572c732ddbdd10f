"""Tell from the text of a program what it does not know of: learners, or where to save. Pure.

A program that knows nothing of learners trains as often as there are learners, and they overwrite
each other's files. Only a program whose files can be read is judged.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from dlctl.contract.ground.safe_text import without_prefix

_OWN_LAUNCHER = re.compile(
    r"\b(torchrun|torch\.distributed\.(?:run|launch)|accelerate launch"
    r"|deepspeed(?= [^;&|]*\.py\b))(?![\w.])"
)
_KNOWS = re.compile(
    r"\b(?:LEARNER_ID|NUM_LEARNERS|(?:LOCAL_|NODE_|GROUP_)?RANK|WORLD_SIZE|MASTER_ADDR|"
    r"SLURM_(?:PROCID|LOCALID|NODEID|NTASKS)|OMPI_COMM_\w+|PMIX?_RANK|"
    r"init_process_group|DistributedDataParallel|MPI_Init|mpi4py|mpiexec|mpirun|horovod\w*|"
    r"deepspeed|accelerate|Accelerator|transformers|trl|sentence_transformers|"
    r"(?:pytorch_)?lightning|fastai|ignite|catalyst|composer|colossalai|fairseq\w*|mmengine|mmcv|"
    r"detectron2|ultralytics|torchtune|megatron\w*|nemo|bagua|byteps|ray|dask|"
    r"jax\.distributed|tf\.distribute|MultiWorkerMirroredStrategy|paddle|oneflow|mindspore|"
    r"(?:from|import) +(?:learner|psrv))\b|torch\.distributed"
)
_SAVES = re.compile(
    r"\b(?:RESULT_DIR|RESULT_BUCKET_DIR|CHECKPOINT_DIR|(?:from|import) +learner)\b|/mnt/results\b"
)
_HALTS = re.compile(r"SIGUSR2|CHECKPOINT_DIR|(?:from|import) +learner\b|\bUSR2\b")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)
_UNKNOWN = "RANK RESULT_DIR SIGUSR2"
"""In place of a text that can't be read."""
_PROGRAMS = (".py", ".sh", ".bash")
_READ = (*_PROGRAMS, ".cfg", ".ini", ".toml", ".yaml", ".yml")
_FOREIGN = ("__pycache__", "node_modules", "site-packages", "venv")
_MOST_FILES, _MOST_BYTES = 2000, 1 << 20


def starts_processes_itself(command: str | None) -> bool:
    """Return whether a command runs torchrun or its like, and not where dlctl's learners meet."""
    return bool(_own_launcher(command))


def _own_launcher(command: str | None) -> str:
    found = _OWN_LAUNCHER.search(command or "")
    return found[1] if found and "MASTER_ADDR" not in (command or "") else ""


def warn_if_alone(command: str | None, learners: int, code: Path) -> str:
    """Return what is wrong with a command for several learners, in one sentence, or "".

    Args:
        code: The folder with the user's files.
    """
    if command is None or learners < 2:
        return ""
    if launcher := _own_launcher(command):
        name = "torchrun" if launcher.startswith("torch") else launcher
        return (
            f"framework.command runs {name} in each of the {learners} learners, but dlctl starts "
            "a process for each learner itself and sets torchrun's variables: use python instead"
        )
    if not any(True for _ in programs_of(command, code)):
        return ""
    if any(_KNOWS.search(text) for text in (command, *_texts(code))):
        return ""
    return (
        "nothing in the program reads RANK or LEARNER_ID or opens a process group: each of the "
        f"{learners} learners trains alone, and they overwrite each other's files"
    )


def saves_beside_itself(texts: Iterable[str], code: Path) -> bool:
    """Return whether a program seems to know neither RESULT_DIR nor CHECKPOINT_DIR.

    Args:
        texts: The command, and what else is run beside the user's files.
        code: The folder with these.
    """
    return not any(_SAVES.search(text) for text in (*texts, *_texts(code)))


def may_save_at_halt(code: Path) -> bool:
    """Return whether a program seems to know how it learns of a halt, or where it goes on from.

    Args:
        code: The folder with its files.
    """
    return any(_HALTS.search(text) for text in _texts(code))


def programs_of(command: str, code: Path) -> Iterator[Path]:
    """Yield the submitted programs that a command names."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        words = command.split()
    for before, word in zip(["", *words], words):
        name = f"{word.replace('.', '/')}.py" if before == "-m" else word.strip(";&|()")
        for prefix in ("$MODEL_DIR/", "${MODEL_DIR}/"):
            name = without_prefix(name, prefix)
        if name.endswith(_PROGRAMS) and not name.startswith("/") and (code / name).is_file():
            yield code / name


def code_files(code: Path) -> list[Path] | None:
    """Return a program's own files, without hidden folders and environments; None: too many."""
    found: list[Path] = []
    for folder, folders, names in os.walk(code):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _FOREIGN]
        found += [Path(folder, name) for name in names]
        if len(found) > _MOST_FILES:
            return None
    return found


def _texts(code: Path) -> Iterator[str]:
    """Yield what the program's files hold without comments, among them those of `dlctl init`.

    Names that end a search stand for what can't be judged.
    """
    files = code_files(code)
    if files is None:
        yield _UNKNOWN
    for path in files or ():
        if not path.name.endswith(_READ) or not path.is_file():  # a pipe would never end
            continue
        try:
            with path.open("rb") as file:
                yield _COMMENT.sub("", file.read(_MOST_BYTES).decode(errors="replace"))
        except OSError:
            yield _UNKNOWN
