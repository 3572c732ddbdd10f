"""Scripts that every shell of a site can read, and in which shellcheck finds no fault."""

import shutil
import subprocess
import sys
from pathlib import Path

SHELLS = [shell for shell in ("sh", "dash", "bash") if shutil.which(shell)]
_SHELLCHECK = shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck"))


def check_script(script, shell="sh", expected=""):
    """Fail unless the shells parse a script and shellcheck finds nothing but `expected`."""
    check_syntax(script, SHELLS if shell == "sh" else [shell])
    left_out = [f"--exclude={expected}"] if expected else []
    _check([_SHELLCHECK, f"--shell={shell}", *left_out, "-"], script)


def check_syntax(script, shells=SHELLS):
    """Fail unless these shells can read a script."""
    for shell in shells:
        _check([shell, "-n"], script)


def _check(command, script):
    done = subprocess.run(command, input=script, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
