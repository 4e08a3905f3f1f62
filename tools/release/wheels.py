"""Source distribution, pure wheel, and wheels of one platform each, which add the kernels of a file."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from mgx_numba.codegen.cpu.identity import environment_identity
from mgx_numba.codegen.shipped import ShippedKernels, file_name
from tools.prebuild.machines import MACHINES

__all__ = ["TAGS", "build_pure", "check_contents", "platform_wheel", "usable"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "mgx_numba"
KERNELS = f"{PACKAGE}/codegen/prebuilt"
"""Folder of kernels in a wheel: `mgx_numba.codegen.shipped.FOLDER`."""
TAGS = {"x86_64-unknown-linux-gnu": "manylinux2014_x86_64", "aarch64-unknown-linux-gnu": "manylinux2014_aarch64"}
"""Platform tag of a wheel, by the triple of its kernels. Kernels call nothing, so the oldest manylinux will do."""


def build_pure(python: str, out: Path, environment: Mapping[str, str]) -> tuple[Path, Path]:
    """Build a source distribution of this tree, and a pure wheel of that.

    Args:
        python: an interpreter whose environment has the package ``build``.
        out: folder for both, without other distributions.
        environment: environment variables of the build.

    Returns:
        The source distribution and the wheel.
    """
    command = [python, "-m", "build", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"the build failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    (source,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return source, wheel


def check_contents(source: Path, wheel: Path) -> None:
    """Check that both distributions have all files of the package, and the wheel nothing else.

    Raises:
        ValueError: a file is missing, or the wheel has others.
    """
    with tarfile.open(source) as archive:
        in_source = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as content:
        in_wheel = set(content.namelist())
    command = ["git", "ls-files", PACKAGE]
    wanted = set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())
    others = {"README.md", "CHANGELOG.md", "LICENSE", "setup.cfg", "tests/__main__.py", "docs/architecture.md"}
    for name, missing in ((source.name, (wanted | others) - in_source), (wheel.name, wanted - in_wheel)):
        if missing:
            raise ValueError(f"{name} lacks {', '.join(sorted(missing))}")
    own = wheel.name.rsplit("-", 3)[0] + ".dist-info/"
    stray = {name for name in in_wheel - wanted if not name.startswith(own)}
    if stray:
        raise ValueError(f"{wheel.name} has {', '.join(sorted(stray))} besides the package")


def usable(kernels: Path) -> bool:
    """Return whether a file has kernels of this tree's state of the kernel language, for any of the known machines."""
    shipped, count = ShippedKernels(kernels.parent), 0
    for machine in MACHINES.values():
        with machine.pretended():
            identity = environment_identity()
        if file_name(identity) == kernels.name:
            count += shipped.count(identity) or 0
    return count > 0


def platform_wheel(pure: Path, kernels: Path) -> Path:
    """Write a wheel beside a pure wheel that adds a file of kernels, for the platform of these kernels.

    Args:
        pure: the pure wheel.
        kernels: a file that ``python -m tools.prebuild`` has written, ``cpu-<triple>.kernels``.

    Raises:
        ValueError: the triple has no platform tag.
    """
    triple = kernels.stem.partition("-")[2]
    if triple not in TAGS:
        raise ValueError(f"{kernels.name}: no platform tag for {triple!r}; known: {', '.join(TAGS)}")
    tag = f"py3-none-{TAGS[triple]}"
    stem = pure.name.removesuffix("-py3-none-any.whl")
    result = pure.with_name(f"{stem}-{tag}.whl")
    record = f"{stem}.dist-info/RECORD"
    with zipfile.ZipFile(pure) as source, zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as target:
        files = {info: source.read(info) for info in source.infolist() if info.filename != record}
        files[_entry(f"{KERNELS}/{kernels.name}", next(iter(files)))] = kernels.read_bytes()
        rows = io.StringIO()
        table = csv.writer(rows, lineterminator="\n")
        for info, data in files.items():
            if info.filename == f"{stem}.dist-info/WHEEL":
                text = data.decode().replace("Tag: py3-none-any", f"Tag: {tag}")
                data = text.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false").encode()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            table.writerow((info.filename, f"sha256={digest}", len(data)))
            target.writestr(info, data, zipfile.ZIP_DEFLATED)
        table.writerow((record, "", ""))
        target.writestr(_entry(record, next(iter(files))), rows.getvalue())
    return result


def _entry(name: str, like: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """Return an entry of a wheel with another entry's time and permissions."""
    info = zipfile.ZipInfo(name, like.date_time)
    info.external_attr = like.external_attr
    return info
