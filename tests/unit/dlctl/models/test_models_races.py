"""What happens to a model while something else happens to it, at the moment between two commands.

A command in front of the site's own does the other thing first: the moment is always the same one.
"""

import os
import shlex
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from repository import REPOSITORY
from stored_models import ModelSite

from dlctl import contract
from dlctl.errors import RecordError, RemoteCommandError, TransferError
from dlctl.models import changes
from dlctl.models.known import parse_reference
from dlctl.models.reading import read_models, verify, whole_version
from dlctl.models.use import bring_code, code_of

GC = """\
import sys
sys.path[:0] = ["tests/support"]
from pathlib import Path
from stored_models import ModelSite
from dlctl.models.changes import collect_garbage
print(collect_garbage(ModelSite(Path(sys.argv[1])).session, 0))
"""


@pytest.fixture
def before(tmp_path, monkeypatch):
    """Run lines of shell once, before the site's own command of a name."""

    def put(command, lines):
        place = tmp_path / "bin"
        place.mkdir(exist_ok=True)
        real = shutil.which(command)
        (place / command).write_text(
            f"#!/bin/sh\nPATH='{os.environ['PATH']}'\n"
            f'if mkdir "$0.once" 2>/dev/null; then (\n{lines}\n) || [ $? -ne 4 ] || exit 4; fi\n'
            f'exec {real} "$@"\n'
        )
        (place / command).chmod(0o755)
        monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")

    return put


def test_gc_before_the_record_takes_no_content_of_the_version(site, folder, before, tmp_path):
    """Its contents were there a moment ago: those of a model that was deleted."""
    made = site.store(folder)
    changes.delete(site.session, site.model(made.model_id), None)
    program = tmp_path / "gc.py"
    program.write_text(GC)
    gc = f"PYTHONPATH=. {sys.executable} {program} {shlex.quote(str(site.root))}"
    before("ln", f"cd {REPOSITORY} && {gc} >{tmp_path}/said 2>&1")
    again = site.store(folder)
    assert "blobs=2" in (tmp_path / "said").read_text(), "it did remove them in between"
    assert verify(site.session, site.version(again.model_id)) == []
    assert site.leftovers() == []


def test_gc_that_cannot_read_all_records_removes_nothing(site, folder, before):
    made = site.store(folder)
    before("sed", "exit 4")
    with pytest.raises(RemoteCommandError, match="can't be removed"):
        changes.collect_garbage(site.session, 0)
    assert verify(site.session, made) == []


def test_a_version_that_is_published_while_its_model_is_deleted_is_not_lost(
    site, folder, before, tmp_path
):
    made = site.store(folder)
    record = site.root / f"models/versions/{made.model_id}"
    (tmp_path / "2.json").write_text((record / "1.json").read_text())
    before(
        "rm",
        f"cp {tmp_path}/2.json {shlex.quote(str(record / '2.json'))} && : >{tmp_path}/published",
    )
    changes.delete(site.session, site.model(made.model_id), None)
    assert not (tmp_path / "published").exists() or (record / "2.json").exists()


def test_a_version_whose_alias_cannot_be_written_is_not_there(site, folder):
    made = site.store(folder)
    (site.root / f"models/versions/{made.model_id}/aliases").write_text("in the way")
    with pytest.raises(TransferError):
        site.store(folder, made.model_id, aliases=["best"])
    with pytest.raises(TransferError):
        site.store(folder, made.model_id, aliases=["best"])
    assert site.model(made.model_id).numbers == [1]
    assert site.store(folder, made.model_id).version == 4, "a number is never given again"


def test_an_alias_that_two_move_at_once_is_one_of_both(site, folder):
    made = site.store(folder)
    site.store(folder, made.model_id)
    known = site.model(made.model_id)

    def move(number):
        own = ModelSite(site.root)
        for _ in range(15):
            changes.change(own.session, known, changes.Changes(["best"], number))

    with ThreadPoolExecutor() as pool:
        list(pool.map(move, (1, 2)))
    assert site.model(made.model_id).aliases["best"] in (1, 2)


def test_a_deletion_that_was_killed_is_undone_or_finished_by_gc(site, folder):
    """Undone where it was not yet known whether anything had changed."""
    first, second = site.store(folder), site.store(folder)
    models = site.root / "models"
    (models / "versions" / first.model_id).rename(models / f".deleting.{first.model_id}")
    (models / "versions" / second.model_id).rename(models / f".deleted.{second.model_id}")
    for path in models.glob(".delet*"):
        os.utime(path, (0, 0))
    changes.collect_garbage(site.session, 0)
    assert [m.model_id for m in read_models(site.session)] == [first.model_id]
    assert verify(site.session, first) == []
    assert not list(models.glob(".delet*"))


def test_a_version_that_is_deleted_between_list_and_record_is_told(site, folder):
    made = site.store(folder)
    models = read_models(site.session)
    changes.delete(site.session, site.model(made.model_id), None)
    with pytest.raises(RecordError, match=f"{made.label} was deleted at this moment"):
        whole_version(site.session, models, parse_reference(made.label))


def test_two_submissions_of_a_version_make_its_folder_once(site, folder, before):
    """The other one is done just before this one moves its folder into place."""
    version = site.version(site.store(folder).label)
    code = code_of(version)
    before("mv", 'case $1 in */.part.*) cp -R "$1" "$2" ;; *) rmdir "$0.once" ;; esac')
    bring_code(site.session, version, code)
    place = site.root / "store"
    assert [path.name for path in place.iterdir()] == [code.digest]
    names = {path.name for path in (place / code.digest).iterdir()}
    assert names == {"words.txt", "model.pt", contract.SENT_INDEX}


@pytest.mark.parametrize("number", [2, None])
def test_a_version_that_gets_an_alias_or_a_use_meanwhile_is_not_deleted(site, folder, number):
    made = site.store(folder)
    site.store(folder, made.model_id)
    known = site.model(made.model_id)
    if number:
        changes.change(site.session, known, changes.Changes(["best"], number))
    else:
        uses = site.root / f"models/versions/{made.model_id}/uses"
        uses.mkdir()
        (uses / "1.t-1").write_text("t-1\n")
    with pytest.raises(RecordError, match="has changed at this moment"):
        changes.delete(site.session, known, number)
    assert site.model(made.model_id).numbers == [1, 2]
