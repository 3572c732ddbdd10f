"""Write docs/a-day.md, one day with a cluster, by really living it: `make cluster && make day`.

The commands run on a terminal of their own, in a home that is deleted afterwards, against the site
of `make cluster`. The page shows what they printed, without colours.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from make_picture import run_on_terminal, visible_lines

PAGE = Path(__file__).with_name("a-day.md")
SITE = "testcluster"
NAME = "mycluster"
BIG, _MOST = 300_000_000, 24
FILES = {
    "manifest.yml": """\
name: spirals
learners: 2
memory: 768MiB
time: 5m
framework: {name: pytorch, job: train.py, arguments: {lr: 0.01, hidden: 32}}
training: {epochs: 3, batch_size: 64}
""",
    "rates.yml": "framework.arguments.lr: [0.1, 0.01]\nframework.arguments.hidden: [16, 64]\n",
    "large.yml": """\
name: large
memory: 256MiB
time: 5m
framework:
  name: sh
  command: head -c 300000000 /dev/urandom >$RESULT_DIR/weights.bin
""",
}
HEAD = """\
# A day

`make day` lives this day on the cluster of `make cluster` and writes down what the commands print.
"""


class Day:
    """A home with a site, and the page so far."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / "spirals"
        self.page: list[str] = [HEAD]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {
            "PATH": path, "HOME": str(home), "TERM": "xterm", "NO_COLOR": "1", "USER": "alice",
            "LANG": "C.UTF-8", "XDG_RUNTIME_DIR": str(home / "run"),
        }  # fmt: skip
        (home / "run").mkdir(mode=0o700)

    def tell(self, text: str) -> None:
        """Add a paragraph."""
        self.page.append(text)

    def show(self, name: str) -> None:
        """Add a file of the folder."""
        language = "yaml" if name != "rates.yml" else "text"
        self.page.append(f"```{language}\n{(self.folder / name).read_text()}```")

    def run(self, command: str) -> str:
        """Run a command to its end, and add it with what it printed."""
        printed = run_on_terminal(["sh", "-c", command], self.folder, self.env)
        lines = visible_lines(printed.replace(str(self.home), "~"))
        lines = lines if len(lines) <= _MOST else [*lines[: _MOST // 2], "⋮", *lines[-_MOST // 2 :]]
        plain = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in lines]
        self.page.append("\n".join(["```text", f"$ {command}", *plain, "```"]))
        return "\n".join(plain)

    def state(self) -> dict[str, object]:
        """Return what is known of the latest training."""
        argv = ["dlctl", "status", "@latest", "--json"]
        done = subprocess.run(argv, cwd=self.folder, env=self.env, check=True, capture_output=True)
        known: dict[str, object] = json.loads(done.stdout)
        return known

    def wait_for(self, state: str) -> None:
        """Wait until the latest training is in a state."""
        while self.state()["state"] != state:
            time.sleep(1)

    def wait_until_it_trains(self) -> None:
        """Wait until the latest training has done some epochs."""
        while (self.state()["epoch"] or 0) < 5:  # type: ignore[operator]
            time.sleep(1)

    def break_off(self, command: str, is_time) -> None:  # type: ignore[no-untyped-def]
        """Run a command, and kill it with SIGKILL once it is time."""
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command.split(), cwd=self.folder, env=self.env, **quiet) as process:
            while process.poll() is None and not is_time():
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
        if process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"{command} ended before it could be killed")
        self.page.append(f"```text\n$ {command}\nKilled\n```")


def write_site(home: Path) -> None:
    """Write the cluster's site under another name, for the transport `openssh`."""
    own = Path.home() / ".config/dlctl/sites" / f"{SITE}.yml"
    site = yaml.safe_load(own.read_text())
    site["transport"]["kind"] = "openssh"
    target = home / ".config/dlctl/sites" / f"{NAME}.yml"
    target.parent.mkdir(parents=True)
    target.write_text(yaml.safe_dump(site))
    shutil.copytree(Path.home() / ".ssh", home / ".ssh")


def live(day: Day) -> None:
    """Live the day."""
    for name, text in FILES.items():
        (day.folder / name).write_text(text)
    day.tell("In the morning one log-in, which asks for the one-time code if the site wants one, "
             "and the default site:")  # fmt: skip
    day.run(f"dlctl sites connect {NAME}")
    day.run(f"dlctl config site {NAME}")
    day.tell("A sweep over two arguments, which `rates.yml` names:")
    day.show("rates.yml")
    day.run("dlctl submit manifest.yml --sweep rates.yml --tag rates")
    day.run("dlctl list --tag rates")
    day.tell("Following one of them until its end:")
    day.run("dlctl logs @latest --follow --rank 0")
    day.run("dlctl show @latest")
    day.tell("A longer one is halted, with a checkpoint, because somebody needs the nodes. Later "
             "it goes on, and following it shows the rest:")  # fmt: skip
    day.run("dlctl submit manifest.yml --set training.epochs=300")
    day.wait_until_it_trains()
    day.run("dlctl halt @latest")
    day.wait_for("HALTED")
    day.run("dlctl resume @latest --follow")
    day.tell("The results of the next one are large. The train enters a tunnel half-way; the same "
             "command goes on:")  # fmt: skip
    day.show("large.yml")
    day.run("dlctl submit large.yml --follow")

    def half() -> bool:
        parts = (day.folder / "results").rglob("*")
        return any(path.is_file() and path.stat().st_size > BIG // 2 for path in parts)

    day.break_off("dlctl fetch results @latest", half)
    day.run("dlctl fetch results @latest")
    day.tell("How the others did:")
    day.run("dlctl list")
    day.tell("In the evening the site is cleared of what is not needed any more:")
    day.run("dlctl prune --older-than 1s --keep-results --dry-run")
    day.run("dlctl prune --older-than 1s --keep-results --yes")
    day.run(f"dlctl sites disconnect {NAME}")


def main() -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory(prefix="day-", dir="/tmp") as folder:
        home = Path(folder)
        subprocess.run([sys.executable, "-m", "dlctl", "init", str(home / "spirals")], check=True,
                       capture_output=True)  # fmt: skip
        write_site(home)
        day = Day(home)
        live(day)
        PAGE.write_text("\n\n".join(day.page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
