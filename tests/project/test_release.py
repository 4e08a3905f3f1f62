"""Releases: version, changelog, wheels, names in documents, deprecations."""

from __future__ import annotations

import ast
import base64
import configparser
import csv
import hashlib
import io
import re
import zipfile
from pathlib import Path

import pytest

from mgx_numba import __version__
from mgx_numba.codegen.cpu.identity import environment_identity
from mgx_numba.codegen.shipped import NEUTRAL, ShippedSection, file_name, pack
from mgx_numba.messages import deprecated
from tools.prebuild.machines import MACHINES
from tools.release.wheels import KERNELS, platform_wheel, usable

ROOT = Path(__file__).resolve().parents[2]
LINES = 100
"""Most lines of a version in the changelog: two pages of 50."""


def test_the_changelog_keeps_the_form_and_has_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.split(r"(?m)^## ", text)[1:]
    titles = [version.splitlines()[0] for version in versions]
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - (unreleased|\d{4}-\d\d-\d\d)", title) for title in titles)
    assert titles[0].startswith(f"[{__version__}]") and re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    for version in versions:
        kinds = re.findall(r"(?m)^### (.*)", version)
        known = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
        assert kinds == [kind for kind in known if kind in kinds]
        assert len(version.splitlines()) <= LINES


def _setup() -> configparser.ConfigParser:
    found = configparser.ConfigParser()
    found.read(ROOT / "setup.cfg")
    return found


def test_extras_that_documents_name_exist() -> None:
    extras = set(_setup()["options.extras_require"])
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*.py"),
        *ROOT.glob("mgx_numba/**/*.py"),
    ]
    named = [
        (page.name, extra)
        for page in pages
        for extra in re.findall(r"pip install [^`\n]*?(?:mgx_numba|\.)\[([a-z]+)\]", page.read_text())
    ]
    assert len(named) >= 5 and [one for one in named if one[1] not in extras] == []


def test_documents_install_no_package_that_the_index_lacks() -> None:
    """The package itself is not on the index; once installed, its extras can be."""
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("mgx_numba/**/*.[hp]*")]:
        if page.suffix in (".md", ".py", ".hpp", ".h"):
            assert not re.search(r"pip install '?mgx_numba(?![\[\w.-])", page.read_text()), page


def test_classifiers_and_least_version_of_python_agree() -> None:
    setup = _setup()
    versions = re.findall(r"Python :: 3\.(\d+)", setup["metadata"]["classifiers"])
    low, high = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", setup["options"]["python_requires"]).groups()
    assert list(map(int, versions)) == list(range(int(low), int(high)))


def _pure_wheel(folder: Path) -> Path:
    path = folder / "mgx_numba-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("mgx_numba/__init__.py", "x = 1\n")
        wheel.writestr(
            "mgx_numba-9.9.9.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("mgx_numba-9.9.9.dist-info/RECORD", "old\n")
    return path


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def test_a_platform_wheel_is_the_pure_wheel_with_kernels(tmp_path: Path) -> None:
    kernels = tmp_path / "cpu-aarch64-unknown-linux-gnu.kernels"
    kernels.write_bytes(b"MGXKERN1")
    made = platform_wheel(_pure_wheel(tmp_path), kernels)
    assert made.name == "mgx_numba-9.9.9-py3-none-manylinux2014_aarch64.whl"
    with zipfile.ZipFile(made) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
        assert len(files) == len(wheel.namelist()) and wheel.testzip() is None
    record = f"{made.name.split('-py3')[0]}.dist-info/RECORD"
    rows = list(csv.reader(io.StringIO(files.pop(record).decode())))
    digests = {
        name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        for name, data in files.items()
    }
    assert rows == [[name, f"sha256={digests[name]}", str(len(files[name]))] for name in files] + [[record, "", ""]]
    assert files[f"{KERNELS}/{kernels.name}"] == b"MGXKERN1" and files["mgx_numba/__init__.py"] == b"x = 1\n"
    told = files["mgx_numba-9.9.9.dist-info/WHEEL"].decode()
    assert "Root-Is-Purelib: false\nTag: py3-none-manylinux2014_aarch64\n" in told


def test_kernels_of_an_unknown_platform_make_no_wheel(tmp_path: Path) -> None:
    kernels = tmp_path / "cpu-riscv64-unknown-linux-gnu.kernels"
    kernels.write_bytes(b"")
    with pytest.raises(ValueError, match="no platform tag for 'riscv64-unknown-linux-gnu'; known: x86_64"):
        platform_wheel(_pure_wheel(tmp_path), kernels)


def test_kernels_of_another_state_of_the_language_are_not_released(tmp_path: Path) -> None:
    with MACHINES["znver5"].pretended():
        identity = environment_identity()
    for intrinsics, expected in ((identity["intrinsics"], True), ("0" * 64, False)):
        section = ShippedSection({**identity, "intrinsics": intrinsics}, "znver5", {"ab" * 16: NEUTRAL.encode()})
        path = tmp_path / str(expected) / file_name(identity)
        path.parent.mkdir()
        path.write_bytes(pack([section]))
        assert usable(path) is expected


def test_deprecations_name_the_replacement_and_point_at_the_caller() -> None:
    with pytest.warns(
        DeprecationWarning, match=r"f\(\) is deprecated and will not be in version 9: call g\(\)"
    ) as seen:
        deprecated("f()", "call g()", "9")
    assert seen[0].filename == __file__


def test_there_is_one_mechanism_for_deprecations() -> None:
    users = [
        path.name
        for path in (ROOT / "mgx_numba").glob("**/*.py")
        if "DeprecationWarning" in path.read_text()
        and any(isinstance(n, ast.Name) and n.id == "DeprecationWarning" for n in ast.walk(ast.parse(path.read_text())))
    ]
    assert sorted(users) == ["messages.py", "trials.py"]  # the latter hides those of other packages
