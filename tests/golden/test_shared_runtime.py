"""Jobs share a runtime: one compiles its bytecode while another looks whose the files are."""

import re
import subprocess
import threading

from repository import REPOSITORY

TEMPLATE = (REPOSITORY / "templates/job.sbatch.j2").read_text()


def test_bytecode_that_another_job_renames_is_nobodys_code(tmp_path):
    """`find` takes a file that vanishes for another user's: one of four jobs at once failed."""
    look = re.search(r'find "\$runtime_dir/".*?\\;\)', TEMPLATE, re.DOTALL)[0].removesuffix(")")
    ends = threading.Event()

    def compile_again():
        number = 0
        while not ends.is_set():
            number += 1
            for each in range(40):
                part = tmp_path / f"{each}.pyc.{number}"
                part.touch(0o644)
                part.replace(tmp_path / f"{each}.pyc")

    compiling = threading.Thread(target=compile_again)
    compiling.start()
    script = f"""my_uid=$(id -u) others_write='-perm -0020 -o -perm -0002' runtime_dir={tmp_path}
for n in {" ".join(map(str, range(25)))}; do {look} 2>/dev/null; done
ln -s /etc/passwd "$runtime_dir/link"; {look} 2>/dev/null"""
    try:
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    finally:
        ends.set()
        compiling.join()
    theirs = "belongs to another user, is a link or can be written by other users"
    assert done.stdout == f"{tmp_path}/link\t{theirs}\n"
