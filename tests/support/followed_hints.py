"""The hints of commands: what is typed, the commands that the answer names, and who else runs some.

tests/cluster/test_hints_of_commands.py runs each command, as it was printed, where it was printed.
"""

from __future__ import annotations

from typing import NamedTuple

FILLED = {
    "FOLDER": "t", "SITE": "local", "NAME": "other", "N": "1", "FILE": "best.yml", "user": "local",
}  # fmt: skip
"""What a person puts in the place of a word in capitals."""
ASKS = ("delete", "models delete", "prune")
"""Commands that ask first; a test has no terminal."""


class Hinted(NamedTuple):
    """A command that says what to do next. {done}, {failed}, … stand for ids."""

    typed: str
    commands: list[str]
    """All that the answer names, in its order."""
    is_over: bool = False
    """Whether the same command works when its hint has been followed."""


LOOKING = [
    Hinted("show {failed}", ["logs {failed} --learner 0 --debug", "show {failed} --all"]),
    Hinted("logs --follow {done}", ["fetch results {done}"]),
    Hinted("resume {done}", ["show {done}"]),
    Hinted("fetch metrics {failed}", ["metrics {failed}"]),
    Hinted("checkpoints show {failed}", ["checkpoints list {failed}"]),
    Hinted("stores save {done}", ["fetch {done}"]),
    Hinted("search trials {done}", ["show {done}"]),
    Hinted("models create --from {failed}", ["logs {failed}", "resume {failed}"]),
    Hinted("metrics --follow {done}", ["watch {done}"]),
    Hinted("watch {done} --json", ["metrics --follow --json {done}"]),
    Hinted("checkpoints list {done}", ["checkpoints verify {done}"]),
    Hinted("ps", ["list"]),
    Hinted("schema nosuch", ["schema"]),
    Hinted("frameworks show nosuch", ["frameworks list"]),
    Hinted("init t", ["init NAME"]),
    Hinted("delete {done} --forget --yes", []),
    Hinted("adopt local", ["list --site local"]),
    Hinted("delete --yes", ["delete ID --yes"]),
]
SITES = [
    Hinted("sites connect far", ["sites show far"]),
    Hinted("sites add here local --without-slurm --python {python}", ["doctor here"]),
    Hinted("doctor local", ["doctor local --deep"]),
    Hinted("doctor --deep", ["doctor SITE --deep"]),
    Hinted("du here", ["prune here --older-than 30d --dry-run"]),
    Hinted("models create --from {done} --site here", ["models create --from ID"]),
    Hinted("sites show nowhere", ["sites add nowhere user@host"], is_over=True),
]
LOST = [
    Hinted("resume {failed}", ["fetch results {failed}", "resume --code {failed}"]),
]
"""Once the files of its attempts are gone."""
GONE = [
    Hinted("fetch results {done}", ["delete {done}"]),
    Hinted("prune local --older-than 0s", ["prune"]),
]
"""Once its job directory is gone."""
RUNNING = [
    Hinted("stores save {running}", ["show {running}"]),
    Hinted("cancel --dry-run {running}", ["halt {running}"]),
    Hinted("delete {other} --yes", ["cancel {other}"], is_over=True),
]
DAMAGED = [
    Hinted(
        "models show {model} --verify",
        ["models show {model}@1 --json", "models update {model} FOLDER"],
        is_over=True,
    ),
    Hinted(
        "submit weights.yml",
        ["models update {model} FOLDER", "models show {model}@1 --verify"],
        is_over=True,
    ),
]
"""While a stored file is damaged; both rows begin so."""
MODELS = [
    Hinted("models list", ["models create FOLDER", "models list --site SITE"]),
    Hinted("models show none", ["models list"]),
    Hinted("models update {model} --remove-tag x", ["models show {model}"]),
    Hinted(
        "models delete {model}@1 --yes",
        [
            "models update {model}@N --alias best",
            "models update {model} --remove-alias best",
            "models delete {model}@2",
        ],
    ),
    Hinted("models delete {model}@1 --yes", ["models delete {model}"]),
]
MANY = [
    Hinted("show", ["list", "submit manifest.yml"], is_over=True),
    Hinted("run", ["submit"]),
    Hinted("submit t/manifest.yml", ["logs --follow t-*"]),
    Hinted("submit t/manifest.yml --repeat 10", ["list --tag batch-*"]),
    Hinted("du local", ["du local --all", "prune local --older-than 30d --dry-run"]),
    Hinted("submit t/manifest.yml --repeat 99999999", ["search init"]),
]
SET_UP = [Hinted("render t/manifest.yml --site bare", ["sites setup bare"], is_over=True)]
TOPICS = ["config site", "sites list", "stores list"]
"""Help texts and descriptions name these."""
ALL = [*LOOKING, *SITES, *LOST, *GONE, *RUNNING, *DAMAGED, *MODELS, *MANY, *SET_UP]

_VERDICT = "cluster/test_hints_run.py::test_the_command_of_each_hint_ends_its_situation"
_WAITS = "cluster/test_logs_and_waits.py::test_a_job_says_why_it_waits_and_what_to_do"
_CLI = "unit/dlctl/cli/test_hints_followed.py::test_the_command_of_a_hint_works_where_it_is_printed"
_SEARCH = "cluster/test_searches.py::"
_MODEL = "cluster/test_stored_model_road.py::test_the_whole_way_of_a_model"
_STORES = "cluster/test_object_stores.py::"
PROVED_BY = {
    "adopt": _CLI,
    "du": _VERDICT,
    "resume --time": _WAITS,
}
"""Kinds of hinted commands that other tests take out of what is printed, and run: file::test."""
RUN_BY_HAND = {
    "checkpoints verify": "cluster/test_own_output.py::"
    "test_what_a_program_keeps_in_checkpoint_dir_is_named_and_fetched",
    "delete": "cluster/test_two_laptops.py::test_a_training_that_was_deleted_behind_our_back",
    "doctor --bundle --deep": "cluster/test_doctor_faults.py::"
    "test_a_job_proves_the_nodes_and_leaves_nothing",
    "models create --from": _MODEL,
    "models pull": _MODEL,
    "models update": _MODEL,
    "rehearse": "cluster/test_suggest.py::test_a_restart_is_rehearsed_and_leaves_nothing_behind",
    "resume --code": "cluster/test_requirements.py::"
    "test_a_program_that_lacks_a_package_continues_once_the_manifest_names_it",
    "search best --manifest": _SEARCH + "test_a_search_runs_to_its_end_and_is_fetched",
    "search scale": _SEARCH + "test_workers_scaled_from_several_places_at_once_are_all_kept",
    "search scale --workers": _SEARCH
    + "test_a_search_that_is_halted_and_resumed_does_nothing_twice",
    "search start": _SEARCH + "test_a_start_that_was_killed_is_taken_up_by_the_same_command",
    "sites connect": "contract/test_transport_openssh.py::"
    "test_a_site_that_asks_is_added_with_a_connection_that_stays",
    "sites nodes": "cluster/test_bad_nodes.py::"
    "test_a_node_with_a_dead_gpu_is_named_avoided_and_remembered",
    "sites remove": "unit/dlctl/cli/test_manners.py::test_deleting_can_be_tried_first",
    "sites add": "cluster/test_doctor_faults.py::"
    "test_a_site_that_was_just_added_agrees_with_its_file",
    "status": _WAITS,
    "stores cache": _STORES + "test_the_cache_of_a_site_is_listed_and_emptied",
    "stores check": _STORES + "test_the_stores_of_a_manifest_are_checked_before_anything_is_sent",
    "stores save": _STORES
    + "test_a_resumption_takes_the_credentials_of_the_shell_and_keeps_those_that_it_lacks",
    "submit": "cluster/test_full_disk.py::test_a_full_disk_at_submission",
    "suggest": "cluster/test_suggest.py::"
    "test_a_manifest_that_asks_for_ten_times_what_was_used_is_made_to_fit",
    "suggest --site --write": "cluster/test_suggest.py::"
    "test_a_manifest_that_asks_for_ten_times_what_was_used_is_made_to_fit",
}
"""Kinds that a test runs where they help, without reading them from what is printed."""
NOT_RUN = {
    "config": "help texts name it",
    "sites list": "help texts name it",
    "stores list": "a schema's description names it",
    "logs --debug": "as `logs --debug --learner`, of a whole job",
    "logs --follow": "it would wait for the training's end",
    "logs --trial": "a search that gives up needs a minute",
    "du --all": "only a list of more than a screen says it",
    "models show --json": "only a list of more than a screen says it",
    "models show --verify": "needs a damaged blob at a site",
    "prune": "the answer to its own question",
    "resume --nodes": "a limit of the site's accounting keeps the job waiting",
    "resume --partition": "its partition is closed: the row above it in reasons.py is run",
    "search trials": "a search without a good trial",
    "sites add --force": "a partition that the site's file lacks",
    "sites setup": "it installs torch",
    "validate --notify": "the text of the notice that it sends",
}
"""Kinds that no test runs, with the reason: the parsing of the command is all that is proved."""
