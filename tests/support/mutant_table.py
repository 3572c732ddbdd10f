"""Fifty faults that an editor could make, in the parts that matter: the table of tests/mutants.py.

Each changes one place of the product, and breaks a promise that its name states. They were chosen
by what would hurt a user most, not by what a test sees.
"""

from __future__ import annotations

from dataclasses import dataclass

ONCE, FENCING, CHECKPOINT = "exactly once", "fencing", "checkpoint publication"
TRANSFER, SECRETS = "transfer", "secrets"
AREAS = (ONCE, FENCING, CHECKPOINT, TRANSFER, SECRETS)
_LIFECYCLE = ("tests/unit/dlctl/lifecycle",)
_SUBMISSION = (*_LIFECYCLE, "tests/golden/test_login_scripts.py")
_BATCH_SCRIPT = (
    "tests/unit/dlctl/plan", *_LIFECYCLE, "tests/unit/learner/lifecycle",
    "tests/unit/learner/supervisor", "tests/golden",
)  # fmt: skip
_PUBLISH = "learner/checkpoint_files/publish.py"
_SUBMIT = "templates/login/submit.sh.j2"
_BATCH = "templates/job.sbatch.j2"


@dataclass(frozen=True)
class Mutant:
    """One fault."""

    area: str
    name: str
    """What goes wrong for a user."""
    file: str
    old: str
    """Occurs exactly once in the file."""
    new: str
    near: tuple[str, ...] = ()
    """Tests near to it, where the module's name does not tell: of templates."""


MUTANTS = (
    # Exactly once -------------------------------------------------------------------------------
    Mutant(
        ONCE,
        "two submissions of an attempt both ask the scheduler",
        _SUBMIT,
        "(set -C; true >{{ begin }}) 2>/dev/null || {",
        "(set -C; true >>{{ begin }}) 2>/dev/null || {",
        _SUBMISSION,
    ),
    Mutant(
        ONCE,
        "two jobs of an attempt both train",
        _BATCH,
        "if ! (set -o noclobber; printf",
        "if ! (printf",
        _BATCH_SCRIPT,
    ),
    Mutant(
        ONCE,
        "a job that Slurm runs again runs an attempt that is another job's",
        _BATCH,
        """attempt $attempt is not its own; nothing to do"; exit 0; }""",
        """attempt $attempt is not its own"; }""",
        _BATCH_SCRIPT,
    ),
    Mutant(
        ONCE,
        "a lost connection is taken for a submission that was never made",
        "dlctl/lifecycle/submit.py",
        "NOT_ASKED = (AuthError, ConnectError, HostKeyError)",
        "NOT_ASKED = (AuthError, ConnectError, HostKeyError, TransportError)",
    ),
    Mutant(
        ONCE,
        "sbatch's lost answer is taken for a refusal",
        "dlctl/scheduler/slurm.py",
        "if exit_code in (0, *range(128, 255)) or ANSWER_LOST.search(stderr) or not refused:",
        "if exit_code in (0, *range(128, 255)) or not refused:",
    ),
    Mutant(
        ONCE,
        "a job that was lost may run beside the next attempt",
        "dlctl/lifecycle/resumption.py",
        "if not fence(session, record) and not record.state.final:",
        "if not record.state.final and not fence(session, record):",
    ),
    Mutant(
        ONCE,
        "two processes begin the same next attempt",
        "learner/lifecycle/next_attempt.py",
        'file = path.open("x")',
        'file = path.open("w")',
    ),
    Mutant(
        ONCE,
        "a job whose answer a node lost is submitted in another way, too",
        "learner/lifecycle/starters.py",
        "if done.returncode and not killed and not ANSWER_LOST.search(errors):",
        "if done.returncode and not killed:",
    ),
    Mutant(
        ONCE,
        "two runners of the local queue run one job",
        "learner/local_queue/runner.py",
        """record.state != "PENDING" or (
                record.runner_start and self.queue.runner_lives(record)
            ):  # fmt: skip""",
        """record.state != "PENDING":""",
    ),
    Mutant(
        ONCE,
        "the first learner's chunks are forgotten, or given out again",
        "psrv/cursor/table.py",
        "if before >= 0:  # the record",
        "if before > 0:  # the record",
    ),
    # Fencing ------------------------------------------------------------------------------------
    Mutant(
        FENCING,
        "a cancellation claims an attempt that a job has claimed",
        "dlctl/lifecycle/end.py",
        "(set -C; true >{claim}) 2>/dev/null && {{ own &&",
        "(set -C; true >>{claim}) 2>/dev/null && {{ own &&",
    ),
    Mutant(
        FENCING,
        "a training that was cancelled meanwhile is queued",
        _SUBMIT,
        "    [ ! -s {{ contract.claim(attempt) }} ] || exit {{ begun_already }} "
        "# cancelled or halted meanwhile\n",
        "",
        _SUBMISSION,
    ),
    Mutant(
        FENCING,
        "a supervisor that comes back late replaces the verdict",
        "learner/supervisor/finish.py",
        "if is_superseded(job_dir, attempt) and is_there(path):",
        "if is_gone(path.parent):",
    ),
    Mutant(
        FENCING,
        "a supervisor that comes back late stores its results over those of a later attempt",
        "learner/supervisor/storing.py",
        "if is_superseded(self.job_dir, self.attempt):",
        "if is_superseded(self.job_dir, self.attempt + 99):",
    ),
    Mutant(
        FENCING,
        "a writer of an earlier attempt publishes its checkpoint",
        _PUBLISH,
        "        if _is_late(order):\n",
        "        if False:\n",
    ),
    Mutant(
        FENCING,
        "learners of a node that was cut off go on beside a later attempt",
        "learner/job/directives.py",
        """        if is_there(self._successor):
            return "a later attempt has taken over"
""",
        "",
    ),
    Mutant(
        FENCING,
        "a late attempt replaces the results that a later one has stored",
        "learner/storage/upload.py",
        'if known.get("attempt", 0) > upload.attempt:',
        'if known.get("attempt", 0) < 0:',
    ),
    Mutant(
        FENCING,
        "a learner that was found dead goes on with its chunks",
        "psrv/cursor/leases.py",
        "if self._table.record(self._slot)[0] != self._learner:",
        "if abs(self._table.record(self._slot)[0]) != self._learner:",
    ),
    Mutant(
        FENCING,
        "a broker acknowledges after its lease has lapsed",
        "search/journal/epochs.py",
        "return not self._superseded and boot_clock() < self._until",
        "return not self._superseded",
    ),
    Mutant(
        FENCING,
        "a broker takes over from one that still holds its lease",
        "search/journal/epochs.py",
        "            wait_for_lapse(watch)\n",
        "            watch.look()\n",
    ),
    # Checkpoint publication ---------------------------------------------------------------------
    Mutant(
        CHECKPOINT,
        "a share is published before it is on the disk",
        "learner/checkpoint_files/share_writer.py",
        "        disk.sync(plain)\n",
        "",
    ),
    Mutant(
        CHECKPOINT,
        "a marker is published before it is on the disk",
        "learner/checkpoint_files/disk.py",
        "            os.fsync(file.fileno())\n        part.replace(path)",
        "        part.replace(path)",
    ),
    Mutant(
        CHECKPOINT,
        "a checkpoint is named before its marker is written",
        _PUBLISH,
        """        disk.write_file(order.temporary / layout.MARKER_FILE, layout.to_bytes(marker))
        disk.sync_directory(order.temporary)
        if _is_late(order):
            raise OSError("a later attempt of this training has begun, and owns its checkpoints")
        _rename(order.temporary, order.final, disk)""",
        """        disk.sync_directory(order.temporary)
        if _is_late(order):
            raise OSError("a later attempt of this training has begun, and owns its checkpoints")
        _rename(order.temporary, order.final, disk)
        disk.write_file(order.final / layout.MARKER_FILE, layout.to_bytes(marker))""",
    ),
    Mutant(
        CHECKPOINT,
        "older checkpoints go before the new one's name is on the disk",
        _PUBLISH,
        "    disk.sync_directory(final.parent)\n",
        "",
    ),
    Mutant(
        CHECKPOINT,
        "a checkpoint that lacks a part of the model is published",
        _PUBLISH,
        '        _check_covered(json.loads(tree)["leaves"], [record for _, record in shares])\n',
        "",
    ),
    Mutant(
        CHECKPOINT,
        "a single checkpoint is kept",
        _PUBLISH,
        "kept >= max(order.keep, LEAST_KEPT)",
        "kept >= order.keep",
    ),
    Mutant(
        CHECKPOINT,
        "a half-removed checkpoint is taken for a whole one",
        "learner/checkpoint_files/disk.py",
        "        (path / MARKER_FILE).unlink(missing_ok=True)\n",
        "",
    ),
    Mutant(
        CHECKPOINT,
        "damage to the state's description is not seen",
        "learner/checkpoint_files/layout.py",
        "if name not in marker.files or zlib.crc32(content) != marker.files[name].crc32:",
        "if name not in marker.files:",
    ),
    Mutant(
        CHECKPOINT,
        "damage to the model's weights is not seen",
        "learner/checkpoint/share_reader.py",
        "if zlib.crc32(block) != self.crc32:",
        "if len(block) != self.size_bytes:",
    ),
    Mutant(
        CHECKPOINT,
        "learners go on from different checkpoints if one finds damage",
        "learner/checkpoint/load.py",
        "if not any(problems):",
        "if problem is None:",
    ),
    # Transfer -----------------------------------------------------------------------------------
    Mutant(
        TRANSFER,
        "files that were damaged on the way are put into place",
        "dlctl/files/upload.py",
        "$check {_SUMS} >.check 2>&1 ||",
        "$check {_SUMS} >.check 2>&1; true ||",
    ),
    Mutant(
        TRANSFER,
        "what arrives behind a wrong offset is appended to a file's beginning",
        "dlctl/files/large.py",
        "self.file.size_bytes if whole else size_bytes // BLOCK_BYTES * BLOCK_BYTES",
        "self.file.size_bytes if whole else size_bytes",
    ),
    Mutant(
        TRANSFER,
        "a download goes on with the beginning of an older file",
        "dlctl/files/large.py",
        "if is_link or json.loads(lines[0]) != self.file.identity:",
        "if is_link:",
    ),
    Mutant(
        TRANSFER,
        "a chunk that was damaged on the way is kept",
        "dlctl/files/large.py",
        "if digest and digest != here:",
        "if digest and len(digest) != len(here):",
    ),
    Mutant(
        TRANSFER,
        "a large file that was damaged on the way is put into place",
        "dlctl/files/contents.py",
        """[ "$size" -eq {size_bytes} ] && [ "${{sum:-{sha256}}}" = {sha256} ] ||""",
        """[ "$size" -eq {size_bytes} ] ||""",
    ),
    Mutant(
        TRANSFER,
        "a file here of the same size is taken for the site's",
        "dlctl/files/download.py",
        "{path for path in digests if sha256_of(self._paths[path]) == digests[path]}",
        "{path for path in digests if self._paths[path].exists()}",
    ),
    Mutant(
        TRANSFER,
        "a fetch replaces a file that the user has edited",
        "dlctl/outputs/fetched_folder.py",
        "if os.path.lexists(path) and not _is_begin(path, arrived, whole=not grows):",
        "if path.is_dir() and not _is_begin(path, arrived, whole=not grows):",
    ),
    Mutant(
        TRANSFER,
        "a file whose content was cut short replaces the old one",
        "dlctl/files/small_files.py",
        "[ $(wc -c <{temporary}) -eq {len(content)} ] ||",
        "[ $(wc -c <{temporary}) -le {len(content)} ] ||",
    ),
    Mutant(
        TRANSFER,
        "the shell splits the name of a large file, or runs it",
        "dlctl/files/large.py",
        'name = shlex.quote(f"./{partial.file.path}")',
        'name = f"./{partial.file.path}"',
    ),
    Mutant(
        TRANSFER,
        "data that a killed fetcher left damaged is used",
        "learner/storage/fetch.py",
        "if zlib.crc32(file.read(length)) == int(checksum):",
        "if len(file.read(length)) == length:",
    ),
    # Secrets ------------------------------------------------------------------------------------
    Mutant(
        SECRETS,
        "the group can read a training's credentials",
        "dlctl/lifecycle/submit.py",
        "files = [Entry(name, value.encode(), mode=0o600)",
        "files = [Entry(name, value.encode(), mode=0o644)",
    ),
    Mutant(
        SECRETS,
        "others can read the secret of the servers",
        "learner/supervisor/worker_group/shard_placement.py",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)",
    ),
    Mutant(
        SECRETS,
        "a learner's last words show a credential",
        "learner/agent/watchdog.py",
        "[masked(line, self.program.secrets) for line",
        "[masked(line, []) for line",
    ),
    Mutant(
        SECRETS,
        "a store's script shows the store's password when it fails",
        "learner/storage/scripted.py",
        "log, [settings[key] for key in store.secrets])",
        "log, list(store.secrets))",
    ),
    Mutant(
        SECRETS,
        "the value of a variable such as API_KEY stays in the manifest that is sent",
        "dlctl/manifest/secrets.py",
        '_LAST_WORDS = frozenset(("TOKEN", "KEY", "PASS"))',
        '_LAST_WORDS = frozenset(("TOKEN", "PASS"))',
    ),
    Mutant(
        SECRETS,
        "what a type of store calls a credential stays in the manifest that is sent",
        "dlctl/manifest/secrets.py",
        "return key in keys or _is_connection_credential(key, value)",
        "return _is_connection_credential(key, value)",
    ),
    Mutant(
        SECRETS,
        "a key is sent with the user's code",
        "dlctl/request/bundle.py",
        "        found = found or secret_in_content(file.source, file.content_bytes)\n",
        "",
    ),
    Mutant(
        SECRETS,
        "a bug report shows the credentials of the user's shell",
        "dlctl/doctor/bundle.py",
        "redact_all(texts, os.environ)",
        "redact_all(texts, {})",
    ),
    Mutant(
        SECRETS,
        "credentials stay at the site after their training was deleted",
        "templates/login/remove_training.sh.j2",
        'rm -rf -- "$aside" "secrets/$1"',
        'rm -rf -- "$aside"',
        _LIFECYCLE,
    ),
    Mutant(
        SECRETS,
        "a peer that does not know the secret is served weights",
        "psrv/transport/tcp.py",
        'if not hmac.compare_digest(proof, _proof(self._secret, b"opener", transcript)):',
        "if len(proof) != _PROOF_BYTES:",
    ),
)
