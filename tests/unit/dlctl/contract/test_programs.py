"""What a program does itself: train alone, save its own checkpoints, write its own output."""

import hashlib
import os
import shutil
import subprocess

import pytest
from unprivileged import unprivileged

from dlctl import contract
from dlctl.contract import CACHES, Amount, OutputPlace
from dlctl.contract.own_checkpoints import SavedFile, own_checkpoints
from dlctl.contract.programs.commands import only_program, unfit_programs, warnings_of
from dlctl.contract.programs.hidden_failures import warn_if_hidden
from dlctl.contract.programs.lone_program import (
    saves_beside_itself,
    starts_processes_itself,
    warn_if_alone,
)
from dlctl.files.made import look_at_made
from dlctl.transport.local import LocalTransport

ALONE = "import torch\ntorch.save({}, 'model.pt')  # of each epoch\n"


@pytest.fixture
def code(tmp_path):
    (tmp_path / "main.py").write_text(ALONE)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import json\n")
    (tmp_path / "README.md").write_text("RANK\n")
    return tmp_path


@pytest.mark.parametrize("command", [
    "python main.py --epochs 3",
    "cd . && python3 -u main.py",
    "python $MODEL_DIR/main.py; echo done",
    "python -m package.train",
    "python main.py --text \"it's",
])  # fmt: skip
def test_a_program_that_knows_nothing_of_learners_is_told(code, command):
    told = warn_if_alone(command, 2, code)
    assert told.startswith("nothing in the program reads RANK or LEARNER_ID")
    assert "each of the 2 learners trains alone" in told
    assert warn_if_alone(command, 1, code) == ""


@pytest.mark.parametrize(("command", "text"), [
    *(("python main.py", text) for text in (
        "rank = int(os.environ['RANK'])", "os.environ.get('LEARNER_ID')",
        "import torch.distributed as dist", "from mpi4py import MPI",
        "import pytorch_lightning as pl", "import lightning as L",
        "from accelerate import Accelerator", "import deepspeed", "import horovod.torch as hvd",
        "from transformers import Trainer", "from learner import ddl",
        "from learner.parameter_server import join", "rank = os.environ['SLURM_PROCID']",
    )),
    # What cannot be judged
    *((command, "") for command in (
        "python main.py --shard $LEARNER_ID", "./solver input.dat", "my-training --epochs 3",
        "python /opt/programs/main.py", "python -m somebody.train", "", None,
    )),
])  # fmt: skip
def test_a_program_that_finds_the_other_learners_is_not(code, command, text):
    (code / "package" / "util.py").write_text(text)
    assert warn_if_alone(command, 4, code) == ""


def test_many_files_are_not_judged_and_an_environment_in_the_folder_is_not_the_program(
    code, monkeypatch
):
    for name in (".venv", "venv"):
        (code / name).mkdir()
        (code / name / "torch.py").write_text("import torch.distributed")
    assert warn_if_alone("python main.py", 2, code)
    monkeypatch.setattr("dlctl.contract.programs.lone_program._MOST_FILES", 2)
    assert warn_if_alone("python main.py", 2, code) == ""


@pytest.mark.parametrize(("command", "told"), [
    ("torchrun --nnodes 2 --nproc-per-node 1 train.py", True),
    ("python -m torch.distributed.run --standalone train.py", True),
    ("torchrun --nnodes 2 --node-rank $NODE_RANK --master-addr $MASTER_ADDR train.py", False),
    ("python train.py", False),
])  # fmt: skip
def test_torchrun_in_a_command_is_told(code, command, told):
    assert starts_processes_itself(command) is told
    assert ("torchrun in each of the 2 learners" in warn_if_alone(command, 2, code)) is told
    assert "torchrun" not in warn_if_alone(command, 1, code)


@pytest.mark.parametrize(("command", "learners", "part"), [
    ("accelerate launch main.py", 2, "accelerate launch in each of the 2 learners"),
    ("deepspeed --num_gpus 2 main.py", 2, "deepspeed in each of the 2 learners"),
    ("mpirun -n 2 python main.py", 1, "runs mpirun in a learner"),
    ("OMP_NUM_THREADS=1 /usr/bin/srun -n 2 python main.py", 1, "runs srun in a learner"),
    ("cd package && sbatch job.sh", 1, "runs sbatch: the training would be over"),
    ("python -m package.trian", 1, "the module package.trian, which is not in the folder; did you "
                                   "mean package.train?"),
    ("cd package; python mian.py", 1, "runs mian.py, which is not in"),
    ("cd package; python mian.py", 1, "did you mean main.py?"),
])  # fmt: skip
def test_a_command_that_can_not_work_as_meant_is_warned_of(code, command, learners, part):
    warnings = warnings_of(command, learners, code)
    assert any(part in each for each in warnings), warnings


@pytest.mark.parametrize("command", [
    "python main.py", "python -u -X dev main.py", "accelerate launch main.py",
    "deepspeed main.py", "torchrun --nproc-per-node 2 main.py", "python -m package.train",
    "python -m axolotl.cli.train c.yml", "cd package && python train.py",
    "command -v srun; exec python main.py", "cp main.py other.py && python other.py",
    "python $DATA_DIR/x.py", "if test -e x.py; then python main.py; fi",
])  # fmt: skip
def test_a_command_that_may_work_is_not(code, command):
    fine = [each for each in warnings_of(command, 1, code) if "pass for a success" not in each]
    assert fine == []


@pytest.mark.parametrize(("command", "program"), [
    ("python main.py --lr 0.1", "main.py"),
    ("PYTHONHASHSEED=0 python3.11 -u -W ignore main.py", "main.py"),
    ("bash -x run.sh | tee log", ""), ("./run", "run"), ("exec ./tools/run.sh", "tools/run.sh"),
    ("cd sub && python main.py", ""), ("python -m main", ""), ("python -c 'import main.py'", ""),
    ("python $CODE/main.py", ""), ("python ../main.py", ""), ("ls", ""), ("", ""), (None, ""),
    ("python 'unclosed.py", ""), ("cat > main.py << E\nE\npython main.py", ""),
])  # fmt: skip
def test_the_only_program_of_a_command_is_known(command, program):
    assert only_program(command) == program


def test_a_script_that_no_shell_can_read_or_start_is_refused(code):
    (code / "run.sh").write_bytes(b"#!/bin/sh\r\npython main.py\r\n")
    assert "Windows line ends" in next(unfit_programs("bash run.sh", code))
    (code / "run.sh").write_bytes(b"#!/bin/sh\npython main.py\n")
    assert next(unfit_programs("./run.sh", code)).endswith("is not executable; chmod +x run.sh")
    assert [*unfit_programs("bash run.sh && python main.py", code)] == []
    (code / "run.sh").chmod(0o755)
    assert [*unfit_programs("./run.sh", code)] == []


PIPED = {
    "python main.py 2>&1 | tee log.txt": "tee",
    "python3.11 main.py |tee log.txt": "tee",
    "python main.py |& ts '%H:%M'": "ts",
    "cd src && python main.py | /usr/bin/grep -v INFO": "grep",
    "bash -c 'python main.py 2>&1 | tee -a log.txt'": "tee",
    "python prepare.py\npython main.py | tee log.txt\n": "tee",
    "python main.py | tee log.txt; echo done": "tee",
}
UNPIPED = (
    "python main.py",
    "python main.py || exit 3",
    "bash -o pipefail -c 'python main.py 2>&1 | tee log.txt'",
    "python main.py | tee log; exit ${PIPESTATUS[0]}",
    "python main.py --data $(ls $DATA_DIR | tail -n 1)",
    "cat list.txt | python main.py",
    "ls | head -3; python main.py",
    "python check.py | grep -q ready && python main.py",
    "python main.py > log.txt 2>&1",
    "# python main.py | tee log",
)


@pytest.mark.parametrize("command", [*PIPED, *UNPIPED])
def test_a_pipe_that_hides_a_failure_is_warned_of_with_the_fix(tmp_path, command):
    warning = warn_if_hidden(command, tmp_path)
    assert bool(warning) is (command in PIPED), warning
    if warning:
        assert f"pipes the program into {PIPED[command]}, whose exit code counts" in warning
        assert "bash -o pipefail -c" in warning


LOST = {
    "python main.py; echo done": "goes on to `echo done` if `python main.py` fails",
    "python main.py > log 2>&1; exit 0": "goes on to `exit 0` if `python main.py` fails",
    "python main.py\necho finished": "goes on to `echo finished`",
    "cd . ; nice python main.py; cd ..": "goes on to `cd ..` if `nice python main.py` fails",
    "(python main.py; true)": "goes on to `true`",
    "if true; then python main.py; fi; rm -rf tmp": "goes on to `rm -rf tmp`",
    "python prepare.py && python main.py; sync": "goes on to `sync` if `python prepare.py` fails",
    "bash -c 'python main.py; echo ok'": "goes on to `echo ok`",
    "bash -c 'python main.py'; echo ok": "goes on to `echo ok` if `bash -c 'python main.py'` fails",
    "set -e; bash -c 'python main.py; echo ok'": "goes on to `echo ok`",
    "python main.py || true": "goes on with `true` if `python main.py` fails",
    "set -e; python main.py || echo failed": "goes on with `echo failed`",
    "python main.py || exit 0": "goes on with `exit 0`",
    "python main.py &": "runs `python main.py` in the background",
    "nohup python main.py > out.log 2>&1 & wait": "runs `nohup python main.py` in the background",
    "python main.py | ./plot.py": "pipes the program into plot.py",
    "for s in 1 2; do python main.py; done 2>&1 | tee log": "pipes the program into tee",
    "{ python main.py; } | tee log": "pipes the program into tee",
    "nice python main.py | gzip > log.gz": "pipes the program into gzip",
    "for s in 1 2; do python main.py $s; done; echo all": "goes on to `echo all`",
    "./main.sh; date": "goes on to `date` if `./main.sh` fails",
    "bash ./run.sh": "run.sh goes on to `echo finished` if `python main.py` fails",
}
KEPT = (
    "python main.py", "exec python main.py", "time python main.py", "(cd . && python main.py)",
    "set -e; python main.py; echo done", "bash -ec 'python main.py; echo done'",
    "bash -eu run.sh", "bash strict.sh", "python main.py && echo done",
    "python main.py || { echo failed; exit 4; }", "python main.py || exit 4",
    "python main.py & wait $!", "python main.py; status=$?; sync; exit $status",
    "bash -o pipefail -c 'python main.py | tee log'", "echo python; python main.py",
    "if true; then python main.py; else false; fi", "A=1 python main.py \\\n  --lr 0.1 # ; date",
    "for s in 1 2; do python main.py $s || exit 3; done; echo all",
    "main() { python main.py; }\nmain", "pip -q list | cat >/dev/null; python main.py",
    "python main.py; exit", "wc -l main.py; python main.py", "bash redirected.sh",
    "python monitor.py & python main.py", "which python; python main.py",
    "python main.py '; echo done'", "python main.py 'open",
)  # fmt: skip


@pytest.mark.parametrize("command", [*LOST, *KEPT])
def test_exactly_what_loses_a_failure_is_warned_of(tmp_path, command):
    """Each command runs as a learner runs it, with a program that fails without a word."""
    script = "#!/bin/bash\npython main.py\necho finished\n"
    for name, text in (("python", "#!/bin/sh\nexit 3\n"), ("run.sh", script), ("main.py", ""),
                       ("main.sh", "#!/bin/bash\npython main.py\ndate\n"),
                       ("plot.py", "#!/bin/true\n"),
                       ("redirected.sh", "#!/bin/bash\npython main.py &> log\n"),
                       ("strict.sh", script.replace("bash", "bash -e")
                        .replace("python", "set -euo pipefail\npython"))):  # fmt: skip
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, capture_output=True,
                          env={**os.environ, "PATH": path}, check=False)  # fmt: skip
    warning = warn_if_hidden(command, tmp_path)
    assert (done.returncode == 0) is (command in LOST), done
    assert bool(warning) is (command in LOST), warning
    assert LOST.get(command, "") in warning


@pytest.mark.parametrize(("command", "text", "learners", "is_warned"), [
    ("python main.py", "from mpi4py import MPI\n", 2, True),
    ("python main.py", "import numpy\nimport mpi4py\n", 2, True),
    ("python main.py", "from mpi4py import MPI\n", 1, False),
    ("python -m mpi4py main.py", "from mpi4py import MPI\n", 2, False),
    ("python main.py", "from mpi4py import MPI\ntry: pass\nexcept E: MPI.COMM_WORLD.Abort(1)\n",
     2, False),
    ("python main.py", "print('no mpi4py')\n", 2, False),
])  # fmt: skip
def test_an_exception_that_leaves_the_others_in_mpi_is_warned_of(
    tmp_path, command, text, learners, is_warned
):
    (tmp_path / "main.py").write_text(text)
    warning = warn_if_hidden(command, tmp_path, learners)
    assert bool(warning) is is_warned
    assert "`python -m mpi4py main.py` ends them" in warning or not is_warned


def test_a_pipe_in_a_script_that_the_command_names_is_found(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\npython main.py 2>&1 | tee log.txt\n")
    warning = warn_if_hidden("bash run.sh", tmp_path)
    assert warning.startswith("run.sh pipes the program into tee")
    assert "begin run.sh with `set -o pipefail`" in warning
    script.write_text("set -euo pipefail\npython main.py 2>&1 | tee log.txt\n")
    assert warn_if_hidden("bash run.sh", tmp_path) == ""


def test_the_fixes_of_a_hidden_failure_work(tmp_path):
    """As a learner runs it: /bin/sh may be dash, which knows no pipefail."""
    for command, code in (
        ("set -e; python3 -c 'raise ValueError'; echo done", 1),
        ("python3 -c 'raise ValueError' & wait $!", 1),
        ("python3 -c 'raise ValueError' 2>&1 | tee log", 0),
        ("bash -o pipefail -c 'python3 -c \"raise ValueError\" 2>&1 | tee log'", 1),
        ("bash -c 'set -o pipefail; python3 -c \"raise ValueError\" 2>&1 | tee log'", 1),
    ):
        argv = ["/bin/sh", "-c", command]
        assert subprocess.run(argv, cwd=tmp_path, capture_output=True).returncode == code


@pytest.mark.parametrize(
    ("command", "program", "beside"),
    [
        ("python main.py", 'torch.save(model, "model.pt")', True),
        ("python main.py", 'torch.save(model, os.environ["RESULT_DIR"])', False),
        ("python main.py --out $CHECKPOINT_DIR", "", False),
        ("python main.py", "from learner import adapters", False),
        ("python main.py", "# the model belongs into $RESULT_DIR\n", True),
    ],
)
def test_a_program_that_names_no_folder_to_save_in_saves_beside_itself(
    tmp_path, command, program, beside
):
    (tmp_path / "main.py").write_text(program)
    assert saves_beside_itself([command], tmp_path) is beside


# Its own checkpoints: by the names that each framework gives them ---------------------------------


def found(names, pattern):
    files = [SavedFile(name, 10, float(n)) for n, name in enumerate(names)]
    return own_checkpoints(files, pattern)


@pytest.mark.parametrize(("pattern", "names", "steps"), [
    ("ckpt-*", ["ckpt-9", "ckpt-10", "other-11"], [10, 9]),
    ("*.ckpt", ["epoch=3-step=120.ckpt", "val=0.12-step=50.ckpt"], [120, 50]),  # Lightning
    ("checkpoint-*", ["checkpoint-500/model.safetensors", "checkpoint-500/trainer_state.json",
                      "runs/log-7"], [500]),  # Hugging Face
    ("**/ckpt-*.index", ["backup/chief/checkpoint", "backup/chief/ckpt-13.index",
                         "backup/chief/ckpt-13.data-00000-of-00001"], [13]),  # tf_keras
    ("[0-9]*", ["20/default/a", "20/_CHECKPOINT_METADATA", "40/default/a",
                "60.orbax-checkpoint-tmp/default/a"], [40, 20]),  # Orbax
    ("*.ubj", ["digits_29.ubj"], [29]),  # XGBoost
    ("*.solverstate", ["lenet_iter_300.solverstate", "lenet_iter_300.caffemodel"], [300]),
    ("model.pt", ["model.pt", "model.pt.tmp"], [None]),
    (None, ["step-3/a", "notes.txt", "weights-5.npy"], [5, 3]),
    ("ckpt-*", ["ckpt-1.part", ".ckpt-2", "ckpt-3.tmp/a"], []),
])  # fmt: skip
def test_the_step_is_the_last_number_of_the_name(pattern, names, steps):
    assert [each.step for each in found(names, pattern)] == steps


def test_files_beside_one_with_the_same_stem_belong_to_it():
    (only,) = found(["b/ckpt-1.index", "b/ckpt-1.data-00000-of-00001", "b/ckpt-10.x"], "b/*.index")
    assert (only.size_bytes, only.written_at, len(only.files)) == (20, 1.0, 2)


def test_with_a_marker_only_folders_that_have_it_are_complete():
    names = ["s-1/a", "s-1/complete.json", "s-2/a"]
    assert [(c.step, c.complete) for c in found(names, "s-*")] == [(2, False), (1, True)]
    assert all(c.complete for c in found(["s-1/a", "s-2/a"], "s-*"))


# Its output, which the node and the login side see alike -----------------------------------------

SENT = {"train.py": b"train", "data/a b.npy": b"1234", "old.pt": b"weights"}
BEFORE, AFTER = 1_000_000, 2_000_000


@pytest.fixture
def job(tmp_path):
    """A job directory as a program finds it."""
    code = tmp_path / "job/code"
    files = []
    for name, content in SENT.items():
        write(code / name, content, BEFORE)
        files.append(
            contract.SentFile(hashlib.sha256(content).hexdigest(), len(content), "f", name)
        )
    write(code / contract.SENT_INDEX, contract.index_text(files), BEFORE)
    write(tmp_path / "job" / contract.claim(1), b"7", BEFORE + 1)
    return tmp_path / "job"


def write(path, content, at=AFTER):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (at, at))


def seen(job):
    made = contract.look_at_made(job)
    found, files = look_at_made(LocalTransport(), str(job))
    assert found == made
    assert made is not None
    own = {f.path[5:]: f.size_bytes for f in files if f.path[:5] == "code/" and f.kind == "f"}
    assert own == contract.own_output(job)
    return made


def test_nothing_is_output_of_a_program_that_writes_nothing(job):
    assert seen(job) == contract.Made()
    shutil.rmtree(job / "code")
    assert seen(job) == contract.Made()


def test_new_and_changed_files_are_output_and_caches_are_not(job):
    write(job / "code/model.pt", b"m" * 9)
    write(job / "code/out/1/é\n.txt", b"22")
    write(job / "code/out/2.txt", b"333")
    write(job / "code/old.pt", b"WEIGHTS")  # as large as before
    write(job / "code/train.py", SENT["train.py"])  # written anew, and the same
    for cache in ("__pycache__/a.pyc", "lib/.cache/x", "wandb/run-1/files/y", ".dlctl-model"):
        write(job / "code" / cache, b"c")
    write(job / "code/wandb/offline-run-1/z", b"z")
    write(job / "results/r", b"1")
    write(job / "checkpoints/step-1/c", b"12")
    made = seen(job)
    assert made.output == [
        OutputPlace("model.pt", 1, 9), OutputPlace("old.pt", 1, 7), OutputPlace("out/", 2, 5),
        OutputPlace("wandb/", 1, 1),
    ]  # fmt: skip
    assert (made.results, made.checkpoints) == (Amount(1, 1), Amount(1, 2))


def test_what_is_beside_the_programs_folder_is_output_but_for_dlctls_own(job, tmp_path):
    """`../data` of pytorch/examples, and JOB_STATE_DIR: they were lost in silence."""
    for name in ("data/MNIST/raw", "state/s", "old.pt", "data/.cache/x", ".hidden"):
        write(job / name, b"22")
    for name in {*contract.DLCTLS} - {contract.RESULTS, contract.CHECKPOINTS, contract.CODE}:
        write(job / name / "x" if "." not in name else job / name, b"")
    (job / "linked").symlink_to(tmp_path)
    made = seen(job)
    assert [place.path for place in made.output] == ["../.hidden", "../data/", "../old.pt",
                                                     "../state/"]  # fmt: skip
    (job / contract.PLAN).write_text('{"output_caches": ["data"]}')
    made, _ = look_at_made(LocalTransport(), str(job))
    assert made == contract.look_at_made(job, ["data"])
    assert "../data/" not in [place.path for place in made.output]
    write(job / "code/data/big.bin", b"1")
    write(job / "code/__pycache__/a.pyc", b"1")
    assert contract.own_output(job, ["data"]) == {"__pycache__/a.pyc": 1}


def test_links_count_as_nothing_and_are_named_to_whoever_fetches(job, tmp_path):
    (job / "code/last.pt").symlink_to("old.pt")
    (job / "code/away").symlink_to(tmp_path)
    sent = (job / "code" / contract.SENT_INDEX).read_text()
    (job / "code/sent").symlink_to("old.pt")
    (job / "code" / contract.SENT_INDEX).write_text(
        contract.index_text([*contract.parse_index(sent.encode()),
                             contract.SentFile("0" * 64, 6, "l", "sent")]).decode()
    )  # fmt: skip
    write(job / "state/sent", b"1")
    assert seen(job) == contract.Made(output=[OutputPlace("../state/", 1, 1)])
    _, files = look_at_made(LocalTransport(), str(job))
    assert [(file.path, file.kind) for file in files] == [
        ("state/sent", "f"), ("code/away", "l"), ("code/last.pt", "l"),
    ]  # fmt: skip


def test_a_folder_that_cannot_be_read_is_named(job):
    closed = (
        "code/out/closed",
        "state",
        "results/mine",
        "checkpoints/x",
        "code/__pycache__",
        "results/.cache",
    )
    for name in closed:
        write(job / name / "model.pt", b"1")
    write(job / "code/model.pt", b"12")
    with unprivileged(job) as job:
        for name in closed:
            (job / name).chmod(0)
        made = seen(job)
    named = (
        "../checkpoints/x/",
        "../results/.cache/",
        "../results/mine/",
        "../state/",
        "out/closed/",
    )
    assert sorted(p.path for p in made.output if not p.files) == [*named]
    assert made.output[-1] == OutputPlace("model.pt", 1, 2)
    told = contract.tell_output([OutputPlace("out/closed/", 0, 0)])
    assert told == "out/closed/: can't be read"


def test_a_change_that_hides_its_time_is_output(job):
    """As large as it was sent, with the mtime that it had: the ctime tells."""
    claim = job / contract.claim(1)
    os.utime(claim, ((job / "code/old.pt").stat().st_ctime - 1,) * 2)
    write(job / "code/old.pt", b"WEIGHTS", BEFORE)
    assert seen(job).output == [OutputPlace("old.pt", 1, 7)]


def test_many_places_are_summed_up():
    places = contract.output_places({f"{n:02}.pt": 100 - n for n in range(12)})
    assert [place.path for place in places] == [*(f"{n:02}.pt" for n in range(10)), ""]
    told = contract.tell_output(places)
    assert told.startswith("00.pt: 100 B; 01.pt: 99 B;")
    assert told.endswith("more: 2 files, 179 B; not in RESULT_DIR")
    assert contract.tell_output([]) == ""
    told = contract.tell_output(contract.output_places({"out\nnext: rm -rf/x": 1}))
    assert told == "out\\nnext: rm -rf/: 1 file, 1 B; not in RESULT_DIR"


def test_a_look_that_takes_too_long_is_given_up(job):
    with pytest.raises(TimeoutError):
        contract.own_output(job, CACHES, until=0.0)
