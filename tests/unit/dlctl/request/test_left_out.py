"""dlctl tells what it does not send: how much, by which rule, and whether the program names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlctl.contract import LeftOut
from dlctl.contract.programs.named_paths import allowing_line, missed, named_paths
from dlctl.errors import ManifestError
from dlctl.manifest.overrides import Overrides
from dlctl.request import ignore, left_out
from dlctl.request.build import prepare
from dlctl.request.bundle import collect
from dlctl.request.scaffold import scaffold
from dlctl.sites.files import load_site


@pytest.fixture
def folder(tmp_path):
    """Return a folder whose ignore files leave out data and weights."""
    made = {
        ".gitignore": "/logs\n# big\n/data/\n", ".dlctlignore": "notes.md\n",
        "lib/.gitignore": "*.bin\n", "lib/w[1].bin": "w", "lib/__init__.py": "",
        "data/x.txt": "x" * 1_100_000, "data/deep/y.csv": "y", "data/__pycache__/z.pyc": "",
        "data/deep/net.py": "", "logs/run.txt": "",
        "notes.md": "n" * 20, "results/old.pt": "", "train.py": "",
        "manifest.yml": "name: a\nframework: {name: pytorch, command: python train.py}\n",
    }  # fmt: skip
    for name, text in made.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def warnings(folder: Path, **files: str) -> list[str]:
    """Return what `submit` warns of, with other contents of some files."""
    for name, text in files.items():
        (folder / {"train": "train.py", "manifest": "manifest.yml"}[name]).write_text(text)
    request = prepare(folder / "manifest.yml", Overrides(), load_site("local"))
    paths = [each.path for each in request.plan.left_out]
    assert len(paths) == len({*paths})
    return [each for each in request.plan.not_in_this_version if "not sent" in each]


def test_the_sentence_has_the_rule_the_largest_file_and_how_many_more(folder):
    assert left_out.summary(collect(folder)) == (
        "6 files, 95 B; left out by .gitignore:3: data/x.txt (1.1 MB) and 2 more; "
        "by .dlctlignore:1: notes.md (20 B); by lib/.gitignore:1: lib/w[1].bin (1 B); "
        "by 1 more rule (--files lists all)"
    )


def test_a_rule_above_the_folder_is_named(folder):
    (folder / ".git").mkdir()
    (folder / ".gitignore").write_text("\n/lib/__*\n")
    assert "by ../.gitignore:2: __init__.py" in left_out.summary(collect(folder / "lib"))


def test_many_rules_and_a_vast_folder_are_summed_up(folder, monkeypatch):
    monkeypatch.setattr(ignore, "MOST_FILES", 1)
    (folder / ".gitignore").write_text("/data/\nlib/*.py\n*.bin\nnotes.md\n")
    told = left_out.summary(collect(folder))
    assert "by .gitignore:1: data/ (more than 10,000 files)" in told
    assert told.endswith("by 1 more rule (--files lists all)")


def test_a_vast_folder_comes_first_and_what_the_program_names_in_it_is_a_warning(
    folder, monkeypatch
):
    monkeypatch.setattr(ignore, "MOST_FILES", 1)
    (folder / ".gitignore").write_text("lib/*.py\n*.bin\nnotes.md\n/data/\n")
    assert "left out by .gitignore:4: data/ (" in left_out.summary(collect(folder))
    line = 'x = ImageFolder("data/deep")\nimport data.other\nopen("data", "w")\nopen("database/x")'
    (told,) = warnings(folder, train=line)
    assert told.startswith("train.py:1 names data/deep, which is not sent: .gitignore:4 leaves")


def test_the_list_has_every_file_with_its_rule(folder):
    rules = {file.path: file.left_out_by for file in left_out.listing(collect(folder))}
    assert rules == {
        ".dlctlignore": "", ".gitignore": "", "lib/.gitignore": "", "lib/__init__.py": "",
        "manifest.yml": "", "train.py": "", "data/x.txt": ".gitignore:3",
        "data/deep/y.csv": ".gitignore:3", "data/deep/net.py": ".gitignore:3",
        "logs/run.txt": ".gitignore:1", "notes.md": ".dlctlignore:1",
        "lib/w[1].bin": "lib/.gitignore:1", "results/": "dlctl",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ('x = open("data/x.txt")', "data/x.txt"),
        ("x = open('./data/deep/y.csv')", "data/deep/y.csv"),
        ("root = Path('data') / name", "data"),
        ('torch.load(HERE / "x.txt")', "x.txt"),
        ("from data.deep import y", "data/deep.py"),
        ("import data.deep.net as net", "data/deep/net.py"),
        ("np.loadtxt(f'{here}/notes.md'); open('notes.md')", "notes.md"),
    ],
)
def test_a_program_that_names_what_is_not_sent_is_told_by_name(folder, line, path):
    (told,) = warnings(folder, train=f"import os\n{line}\n")
    assert told.startswith(f"train.py:2 names {path}, which is not sent: ")
    assert "To send it, add the line !/" in told


@pytest.mark.parametrize(
    "line",
    [
        'loss = batch["data"] + row.get("data")', "data = {'data': 1}", "# open('data/x.txt')",
        "torch.save(model, 'data/x.txt')", "open('data/x.txt', 'w')", "open('data/none.txt')",
        "open('/data/x.txt')", "import database", "import logs",
    ],
)  # fmt: skip
def test_what_is_no_path_to_read_is_no_warning(folder, line):
    assert warnings(folder, train=f"{line}\n") == []


def test_a_manifest_that_names_it_is_told(folder):
    head = "name: a\nframework: {name: pytorch, command: python train.py"
    (told,) = warnings(folder, manifest=f"{head} --data data}}\n")
    assert told == (
        "framework.command:1 names data, which is not sent: .gitignore:3 leaves it out. To send it,"
        " add the line !/data/ to .dlctlignore, or put it into a data store."
    )
    store = (
        "data_stores: [{id: s, type: mount_volume, connection: {path: /x}, "
        "training_data: {container: x}}]\n"
    )
    in_a_store = f"{head}}}\n{store}"
    assert warnings(folder, train="open(D / 'x.txt')\n", manifest=in_a_store) == []


def test_a_needed_file_that_is_excluded_is_refused_with_the_line_that_sends_it(folder):
    (folder / "lib/.gitignore").write_text("\nnet.py\n")
    (folder / "lib/net.py").touch()
    (folder / "manifest.yml").write_text("name: a\nframework: {name: pytorch, job: lib/net.py}\n")
    with pytest.raises(ManifestError, match=r"net.py is excluded by lib/.gitignore:2") as caught:
        prepare(folder / "manifest.yml", Overrides(), load_site("local"))
    assert caught.value.hint == "add the line !/net.py to lib/.dlctlignore, or move the file"


def test_the_plan_holds_it_for_the_node_and_the_line_that_is_named_sends_it(folder):
    plan = prepare(folder / "manifest.yml", Overrides(), load_site("local")).plan
    assert LeftOut("data/", ".gitignore:3", has_modules=True) in plan.left_out
    for each in left_out.for_plan(collect(folder).left_out):
        if each.rule != "dlctl":
            file, line = allowing_line(each)
            with (folder / file).open("a") as text:
                text.write(f"{line}\n")
    sent = {file.path for file in collect(folder).files}
    assert {"data/x.txt", "notes.md", "lib/w[1].bin"} < sent


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/x.txt'", "data/x.txt"),
        (
            "OSError: Unable to open file (name = '/r/jobs/t/code/data/a.h5', errno = 2)",
            "data/a.h5",
        ),
        ("No such file or directory: '/r/store/code/" + "0" * 32 + "/w.pkl'", "w.pkl"),
        ("ModuleNotFoundError: No module named 'data.loader'", "data/loader.py"),
        ("cat: w.pkl: No such file or directory", "w.pkl"),
        ("KeyError: 'data'", None),
        ("ModuleNotFoundError: No module named 'wandb'", None),
        ("No such file or directory: '/data/x.txt'", None),
        ("ModuleNotFoundError: No module named 'database'", None),
    ],
)
def test_a_log_names_what_was_not_sent(line, path):
    left = [LeftOut("data/", ".gitignore:3", has_modules=True), LeftOut("w.pkl", "a:1")]
    found = missed(["start", line], [*left, LeftOut("wandb/", "a:2")])
    assert (found and found[0]) == path
    assert list(named_paths("cp a data/b $X/c", is_shell=True)) == ["cp", "a", "data/b"]


def test_the_commands_say_it(dlctl, folder, xdg):
    shown = dlctl("render", str(folder / "manifest.yml"), ok=True)
    assert "5 files, " in shown.stderr
    assert "left out by .gitignore:3: data/x.txt (1.1 MB) and 2 more" in shown.stderr
    listed = json.loads(
        dlctl("render", str(folder / "manifest.yml"), "--files", "--json", ok=True).stdout
    )
    assert {"path": "notes.md", "size_bytes": 20, "left_out_by": ".dlctlignore:1"} in listed


def test_nothing_left_out_is_no_word_nor_is_what_init_writes_for_editors(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/train.py").touch()
    assert left_out.summary(collect(tmp_path / "mine")) == "1 file, 0 B"
    (tmp_path / "mine/train.py").unlink()
    scaffold(tmp_path)
    assert left_out.summary(collect(tmp_path)).startswith("3 files, ")
    assert "left out" not in left_out.summary(collect(tmp_path))
