"""The hints of commands: what is typed, the commands that the answer names, and who else runs some.

tests/cluster/test_hints_of_commands.py runs each command, as it was printed, where it was printed.
Beside them: who runs the programs of the system that hints name.
"""

from __future__ import annotations

from typing import NamedTuple

FILLED = {
    "FOLDER": "t", "SITE": "local", "NAME": "other", "N": "1", "FILE": "best.yml",
    "user": "local --without-slurm",
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
    Hinted("models update {elsewhere} --from {done}", ["models create --from {done}"]),
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
    Hinted("init t", ["submit t/manifest.yml"]),
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
    Hinted("sites show nowhere", ["sites add nowhere user@host"], is_over=True),
]
ENDED = [Hinted("prune local --older-than 1s", ["prune"])]
LOST = [Hinted("resume {failed}", ["fetch results {failed}", "resume --code {failed}"])]
"""Once the files of its attempts are gone."""
GONE = [Hinted("fetch results {failed}", ["delete {failed}"])]
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
SUMLESS = [Hinted("models show {model} --verify", ["models pull {model}@*"])]
"""Where no program can compute a SHA-256."""
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
TOPICS = {"config": "config site", "sites list": "sites list", "stores list": "stores list"}
"""Help texts and descriptions name these."""
ALL = [
    *LOOKING,
    *SITES,
    *ENDED,
    *LOST,
    *GONE,
    *RUNNING,
    *DAMAGED,
    *SUMLESS,
    *MODELS,
    *MANY,
    *SET_UP,
]

_HINTS = "cluster/test_hints_run.py::"
_WAITS = (
    "cluster/test_logs_and_waits.py::"
    "test_a_job_that_waits_in_vain_starts_by_the_commands_of_its_hint"
)
_CLI = "unit/dlctl/cli/test_hints_followed.py::test_the_command_of_a_hint_works_where_it_is_printed"
_SEARCH = "cluster/test_searches.py::"
_MENDED = _SEARCH + "test_a_search_whose_program_is_broken_ends_early_and_goes_on_with_a_mended_one"
_STORES = "cluster/test_object_stores.py::"
_DOCTOR = "cluster/test_doctor_faults.py::"
_SUGGEST = "cluster/test_suggest.py::"
_FITS = _SUGGEST + "test_a_manifest_that_asks_for_ten_times_what_was_used_is_made_to_fit"
_AGAIN = "unit/dlctl/cli/test_again.py::"
PROVED_BY = {
    "dashboard": "unit/dlctl/cli/test_small_commands.py::"
    "test_it_prints_where_it_is_and_ends_at_ctrl_c",
    "diff": _AGAIN + "test_a_training_is_submitted_again_with_changes_from_any_folder",
    "init": _CLI,
    "init --command": "unit/dlctl/cli/test_cli.py::"
    "test_init_writes_a_manifest_for_a_program_that_is_there",
    "render --files": "unit/dlctl/request/test_left_out.py::test_the_commands_say_it",
    "submit --sweep": _AGAIN + "test_a_command_that_is_given_twice_names_what_it_has_started",
    "submit --tag": _AGAIN + "test_a_command_that_is_given_twice_names_what_it_has_started",
    "submit --from": _AGAIN + "test_a_training_is_submitted_again_with_changes_from_any_folder",
    "validate": _CLI,
    "adopt": _CLI,
    "du": _HINTS + "test_the_command_of_each_hint_ends_its_situation",
    "doctor --bundle --deep": _DOCTOR
    + "test_a_job_that_leaves_no_word_is_explained_by_the_logs_of_the_next",
    "logs --debug": _HINTS + "test_the_command_of_each_hint_ends_its_situation",
    "logs --trial": _MENDED,
    "rehearse": _SUGGEST + "test_a_restart_is_rehearsed_and_leaves_nothing_behind",
    "resume --nodes": _WAITS,
    "resume --partition": _WAITS,
    "resume --time": "cluster/test_logs_and_waits.py::test_a_job_says_why_it_waits_and_what_to_do",
    "search best --manifest": _SEARCH
    + "test_trials_of_other_frameworks_get_their_own_arguments_and_the_best_one_a_manifest",
    "search scale --workers": _SEARCH
    + "test_trials_without_workers_get_some_by_the_command_that_is_printed",
    "search start": _MENDED,
    "search trials": _MENDED,
    "sites connect": "contract/test_transport_openssh.py::"
    "test_a_site_that_asks_is_added_with_a_connection_that_stays",
    "sites nodes": "cluster/test_bad_nodes.py::"
    "test_a_node_with_a_dead_gpu_is_named_avoided_and_remembered",
    "sites remove": "unit/dlctl/site_admin/test_site_setup.py::"
    "test_an_environment_for_the_site_local_is_told_and_its_file_is_true",
    "status": _MENDED,
    "stores cache --site": _STORES
    + "test_a_cache_that_takes_no_more_names_the_command_that_lists_it",
    "stores check": _STORES + "test_the_stores_of_a_manifest_are_checked_before_anything_is_sent",
    "stores save": _STORES
    + "test_the_login_node_moves_the_data_where_nodes_have_no_way_to_the_store",
    "suggest": _FITS,
    "suggest --site --write": _FITS,
    "validate --notify": "unit/dlctl/cli/test_small_commands.py::"
    "test_each_way_gets_a_signed_notice_that_says_it_is_a_test",
}
"""Kinds of hinted commands that other tests take out of what is printed, and run: file::test."""
NOT_RUN: dict[str, str] = {}
"""Kinds that no test runs, with the reason: the parsing of the command is all that is proved."""

LOOKS = ["df -h", "df -i", "free -h", "ls -ld", "ulimit -a"]
"""Programs that only look; whatever the situation, they run as they are printed."""
_PROGRAMS = "cluster/test_programs_in_hints.py::"
_REFUSED = _PROGRAMS + "test_what_slurm_refuses_is_put_right_with_the_list_that_the_hint_names"
PROGRAMS = {
    "chmod +x": _PROGRAMS + "test_a_program_that_is_not_executable",
    "chmod 600": _PROGRAMS + "test_a_secret_on_the_node_that_others_may_read",
    "chmod go-w": _PROGRAMS + "test_a_root_that_others_may_write_to",
    "chmod u+r": _PROGRAMS + "test_a_list_of_ignored_files_that_cannot_be_read",
    "rm": _PROGRAMS + "test_a_token_that_others_may_read",
    "sacctmgr show": _REFUSED,
    "scontrol release": "cluster/test_logs_and_waits.py::"
    "test_a_job_says_why_it_waits_and_what_to_do",
    "sinfo -o": _REFUSED,
    "srun --mpi": "cluster/test_site_faults.py::test_a_wrong_pmi_stops_before_training",
    "ssh -Q": "contract/test_transport_openssh.py::"
    "test_a_server_whose_algorithms_ssh_does_not_have_is_for_its_administrators",
    "ssh-keygen -R": "contract/test_transport_openssh.py::"
    "test_the_steps_for_a_changed_host_key_let_the_host_in",
}
"""Programs of the system that a test runs as a hint names them, where it does."""
PROGRAMS_NOT_RUN = {
    "fuser": "psmisc is not on the machines that test",
    "keyring set": "it needs the keyring of a desktop",
    "pip download": "it needs a package index",
    "pip install": "it would change the Python that runs the tests; where dlctl itself runs pip, "
    "for `sites setup` and `requirements`, tests do, with wheels of their own",
    "quota -s": "no file system of the tests has quotas",
    "quota -w": "names what dlctl has run; no file system of the tests has quotas",
    "rm -rf": "what a killed server has left on a node that does not answer any more",
    "scontrol show": "a Slurm that gives a job fewer GPUs than it had asked for",
    "ssh HOST": "a host whose shell answers nothing, of which only its user can say why",
    "ssh-add": "it takes the keys from the account's own home, whatever HOME says",
    "ulimit -f": "names the limit that a reason is about",
    "ulimit -t": "names the limit that a reason is about",
    "ulimit -v": "names the limit that a reason is about",
}
