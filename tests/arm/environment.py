"""An ARM Python with this package's dependencies, beside this machine's own, in a folder: no container, no root.

Debian's packages are resolved and downloaded by apt with a state of its own, and unpacked. The wheels are those of the
versions installed here, so that kernels compiled here have the identity that they have there.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Environment", "Unavailable", "build"]

_PACKAGES = ("qemu-user-static:{here}", "python3:arm64", "libstdc++6:arm64")
_WHEELS = (
    "hypothesis", "llvmlite", "ml_dtypes", "msgpack", "numba", "numpy", "onnx", "protobuf", "pytest",
)  # fmt: skip
_TAGS = ("manylinux2014", "manylinux_2_17", "manylinux_2_26", "manylinux_2_27", "manylinux_2_28")
"""Platforms of wheels that Debian 12's C library (2.36) and later ones run."""


MOST_SECONDS = 300
"""Seconds of one download; all of them took 33 s."""


class Unavailable(Exception):
    """The environment cannot be built on this machine."""


@dataclass(frozen=True)
class Environment:
    """The unpacked programs.

    Attributes:
        emulator: QEMU's program for 64-bit ARM.
        root: what programs there see below ``/``, where it exists.
        python: the Python program.
        site: folder of the wheels.
    """

    emulator: Path
    root: Path
    python: Path
    site: Path

    def cpus(self) -> list[str]:
        """Return the names of the CPUs that the emulator has."""
        # Its status is 1 in spite of the answer.
        shown = subprocess.run([self.emulator, "-cpu", "help"], check=False, capture_output=True, text=True).stdout
        return shown.replace("Available CPUs:", "").split()

    def command(self, cpu: str) -> list[str]:
        """Return the command that runs Python on a CPU."""
        return [str(self.emulator), "-cpu", cpu, "-L", str(self.root), str(self.python)]

    def wrapper(self, cpu: str, folder: Path) -> Path:
        """Return a program that runs Python on a CPU, for tests that start processes."""
        path = folder / f"python-{cpu}"
        path.write_text(f'#!/bin/sh\nexec {shlex.join(self.command(cpu))} "$@"\n')
        path.chmod(0o755)
        return path


def build(folder: Path) -> Environment:
    """Return the environment in a folder, built at the first call.

    Raises:
        Unavailable: a program or a package cannot be had.
    """
    versions = {name: importlib.metadata.version(name) for name in _WHEELS}
    state = hashlib.sha256(repr((_PACKAGES, _TAGS, versions)).encode()).hexdigest()[:16]
    home = folder / state
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        _unpack_packages(home)
        _install_wheels(home, versions)
        (home / "complete").touch()
    return _environment(home)


def _environment(home: Path) -> Environment:
    (emulator,) = home.glob("here/usr/bin/qemu-aarch64-static")
    return Environment(emulator, home / "root", _python(home), home / "site")


def _python(home: Path) -> Path:
    (python,) = home.glob("root/usr/bin/python3.[0-9]*[0-9]")
    return python


def _unpack_packages(home: Path) -> None:
    tools = {name: shutil.which(name) for name in ("apt-get", "dpkg")}
    if None in tools.values():
        raise Unavailable("this system has no apt-get and dpkg")
    here = _run("dpkg", "--print-architecture").strip()
    for name in ("state/lists/partial", "cache/archives/partial", "here", "root"):
        (home / name).mkdir(parents=True)
    (home / "status").touch()
    settings = [
        f"Dir::State={home / 'state'}", f"Dir::State::status={home / 'status'}", f"Dir::Cache={home / 'cache'}",
        "APT::Architecture=arm64", "APT::Architectures::=arm64", f"APT::Architectures::={here}",
        "Debug::NoLocking=true", "APT::Sandbox::User=",
    ]  # fmt: skip
    apt = ["apt-get", "-qq", *(f"-o{setting}" for setting in settings)]
    wanted = [name.format(here=here) for name in _PACKAGES]
    _run(*apt, "update")
    _run(*apt, "install", "--yes", "--download-only", "--no-install-recommends", *wanted)
    for package in (home / "cache" / "archives").glob("*.deb"):
        _run("dpkg", "-x", str(package), str(home / ("here" if "qemu-user" in package.name else "root")))
    shutil.rmtree(home / "cache")
    shutil.rmtree(home / "state")


def _install_wheels(home: Path, versions: dict[str, str]) -> None:
    version = _python(home).name.removeprefix("python")
    wanted = [f"{name}=={number}" for name, number in versions.items()]
    tags = [f"--platform={tag}_aarch64" for tag in _TAGS]
    _run(
        sys.executable, "-m", "pip", "install", "--quiet", f"--target={home / 'site'}", "--only-binary=:all:",
        "--implementation=cp", f"--python-version={version}", *tags, *wanted,
    )  # fmt: skip


def _run(*command: str) -> str:
    """Return the output of a command.

    Raises:
        Unavailable: the command failed.
    """
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "LC_ALL": "C"},
            timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{Path(command[0]).name} takes more than {MOST_SECONDS} s") from None
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise Unavailable(f"{Path(command[0]).name} failed: {' '.join(last)}")
    return done.stdout
