"""Tiny packages: wheels for pip without an index, and a Python that has them."""

import sys
import zipfile
from pathlib import Path

NODE_VERSIONS = {"torch": "2.13", "mpi4py": "4.1", "h5py": "3.16", "numpy": "2.4",
                 "watchdog": "7.1", "obstore": "0.12", "grpcio": "1.85",
                 "protobuf": "7.36"}  # fmt: skip
"""Of the packages that a node's Python needs."""
_MPI = {
    "mpi4py/__init__.py": "class rc: initialize = True\n",
    "mpi4py/MPI.py": "Get_library_version = lambda: 'tiny MPI, package: Tiny builder@host\\0'\n",
}


def make_node_wheels(folder: Path) -> None:
    """Make a wheel of each package that a node's Python needs."""
    for name, version in NODE_VERSIONS.items():
        files = {f"{name}/__init__.py": f"__version__ = '{version}'\n"}
        make_wheel(folder, name, version, files | (_MPI if name == "mpi4py" else {}))


def make_node_python(folder: Path) -> Path:
    """Return a Python that has these packages and no others; folder/packages takes more."""
    make_node_wheels(folder)
    for wheel in folder.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder / "packages")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/packages exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


def make_wheel(
    folder: Path, name: str, version: str, files: dict[str, str], needs: tuple[str, ...] = ()
) -> None:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        **files,
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {need}\n" for need in needs),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)
