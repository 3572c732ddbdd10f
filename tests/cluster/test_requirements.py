"""What a manifest requires is installed before its job is queued, on both sites."""

import base64
import contextlib
import functools
import os
import shutil
import stat
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from trainings import ON_THE_CLUSTER, change_site, run, submit, write_training
from wheels import make_wheel


@pytest.fixture
def wheels(site, tmp_path):
    """A folder of wheels that the login host and the nodes see, too."""
    folder = (site.cluster.home if site.is_cluster else tmp_path) / "wheels"
    folder.mkdir()
    make_wheel(folder, "useful", "1.0", {"useful.py": "import numpy\n"}, needs=("numpy",))
    make_wheel(folder, "eager", "1.0", {"eager.py": ""}, needs=("numpy==1.0",))
    yield folder
    shutil.rmtree(folder)


@ON_THE_CLUSTER
def test_all_nodes_import_the_requirements_and_mpi_still_works(dlctl, site, wheels, tmp_path, xdg):
    """With mpirun: on further nodes it puts the folder of the site's Python first on PATH."""
    nodes = ("--nodes", "2") if site.is_cluster else ()
    site = change_site(site, xdg.config, launcher={"kind": "mpirun", "mpi": None})
    code = "import useful, numpy, sys; from mpi4py.MPI import COMM_WORLD as world; "
    code += "print(sys.prefix, useful.__file__, numpy.__file__, world.allreduce(world.rank + 1))"
    folder = write_training(
        tmp_path / "t", {"command": f'python -c "{code}" >"$RESULT_DIR/$RANK"'},
        {"r.txt": f"--no-index\n--find-links {wheels}\nuseful\n"}, requirements="r.txt", learners=2,
    )  # fmt: skip
    plan = dlctl("render", "--site", site.name, "--json", cwd=folder, ok=True).json["plan"]
    environment = site.root / "environments" / plan["environment"]["python"].split("/")[-3]
    assert not environment.exists()
    done, training_id = run(dlctl, site, folder, *nodes, ok=True)
    assert "installing useful into" in done.stderr
    for rank in "01":
        *told, total = (site.job_dir(training_id) / "results" / rank).read_text().split()
        assert total == "3", "of ranks 0 and 1, over both nodes"
        assert [str(environment) in place for place in told] == [True, True, False]
        assert str(site.python.parents[1]) in told[2]
    again = dlctl("submit", "manifest.yml", "--site", site.name, cwd=folder, ok=True)
    assert "installing" not in again.stderr
    dlctl("cancel", again.stdout.strip(), ok=True)


@ON_THE_CLUSTER
def test_requirements_that_can_not_be_installed_queue_nothing(dlctl, site, wheels, tmp_path):
    lines = ["--no-index", f"--find-links {wheels}", "eager"]
    folder = write_training(tmp_path / "t", {"command": "true"}, requirements=lines)
    done = dlctl("submit", "manifest.yml", "--site", site.name, cwd=folder)
    assert done.exit_code == 4
    assert f"can't be installed on {site.name}: pip could not install them: Cannot" in done.stderr
    assert "The site has numpy==" in done.stderr
    assert dlctl("list", "--json", ok=True).json == []
    assert not (site.root / "jobs").exists()


@ON_THE_CLUSTER
def test_a_lost_environment_is_made_again_before_a_training_resumes(dlctl, site, wheels, tmp_path):
    lines = ["--no-index", f"--find-links {wheels}", "useful"]
    command = 'python -c "import useful"; exec sleep 60'
    folder = write_training(tmp_path / "t", {"command": command}, requirements=lines)
    training_id = submit(dlctl, site, folder)
    dlctl("cancel", training_id, ok=True)
    (environment,) = (site.root / "environments").glob("[!.]*/")
    shutil.rmtree(environment)
    resumed = dlctl("resume", training_id, ok=True)
    assert "installing" in resumed.stderr
    assert os.access(environment / "bin/python", os.X_OK) or site.is_cluster
    dlctl("cancel", training_id, ok=True)


def test_a_program_that_lacks_a_package_continues_once_the_manifest_names_it(
    dlctl, local_site, tmp_path
):
    make_wheel(tmp_path, "useful", "1.0", {"useful.py": ""})
    program = {"command": 'python -c "import useful"'}
    folder = write_training(tmp_path / "t", program)
    done, training_id = run(dlctl, local_site, folder)
    assert "`requirements` in the manifest" in done.stderr
    write_training(folder, program, requirements=["--no-index", f"-f {tmp_path}", "useful"])
    again = dlctl("resume", "--code", "--follow", training_id, cwd=folder)
    assert again.exit_code == 0, again.stdout + again.stderr
    assert "installing useful into" in again.stderr
    stored = dlctl("show", training_id, "--json", ok=True).json["plan"]
    assert stored["requirements"] == ["--no-index", f"-f {tmp_path}", "useful"]


TOKEN = "t0ken-of-a-private-index"


def leaks(folder):
    """Return the processes that show the token to others, and the files that others may read."""
    found = []
    for path in [*Path("/proc").glob("[0-9]*/cmdline"), *Path("/proc").glob("[0-9]*/environ")]:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found += [path] * (TOKEN.encode() in path.read_bytes())
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode) and TOKEN.encode() in path.read_bytes():
                found += [path] * (stat.S_IMODE(mode) != 0o600)
    return found


@pytest.fixture
def private_index(tmp_path):
    """A package index that asks for a token, and what it saw at each request."""
    wheels = tmp_path / "index" / "useful"
    wheels.mkdir(parents=True)
    make_wheel(wheels, "useful", "1.0", {"useful.py": ""})
    seen = []

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self):
            given = self.headers.get("Authorization", "")
            seen.append((self.path, given, leaks(tmp_path)))
            if given != f"Basic {base64.b64encode(f'{TOKEN}:x'.encode()).decode()}":
                self.send_response(401)
                self.send_header("WWW-Authenticate", "Basic")
                self.end_headers()
            else:
                super().do_GET()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path / "index"))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", seen
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_nobody_else_sees_the_token_of_a_private_index(
    dlctl, local_site, tmp_path, xdg, private_index
):
    url, seen = private_index
    netrc = xdg.home / ".netrc"
    netrc.write_text(f"machine 127.0.0.1 login {TOKEN} password x\n")
    netrc.chmod(0o600)
    lines = [f"--index-url {url}", "useful"]
    folder = write_training(
        tmp_path / "t", {"command": 'python -c "import useful"'}, requirements=lines
    )
    done, training_id = run(dlctl, local_site, folder, ok=True)
    assert any(path.endswith(".whl") and given for path, given, _ in seen), seen
    assert [found for *_, found in seen if found] == []
    assert leaks(tmp_path) == []
    told = done.stdout + done.stderr + dlctl("show", training_id, "--all", ok=True).stdout
    assert TOKEN not in told
    with_token = url.replace("//", f"//{TOKEN}@")
    write_training(
        folder, {"command": "true"}, requirements=[f"--index-url {with_token}", "useful"]
    )
    refused = dlctl("submit", "manifest.yml", cwd=folder)
    assert refused.exit_code and TOKEN not in refused.stdout + refused.stderr, refused
    assert "netrc" in refused.stderr
