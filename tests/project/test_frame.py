"""The project's files are consistent with one another."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from mgx_numba._version import __version__

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def config() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_ci_runs_the_readme_test_command() -> None:
    commands = re.findall(r"^python3 -m venv .*-m tests$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(commands) == 1
    assert f"\n{commands[0]} " in (ROOT / ".ci" / "run").read_text()


def test_version_is_semantic_and_read_from_the_package(config: configparser.ConfigParser) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    assert config["metadata"]["version"] == "attr: mgx_numba._version.__version__"


EXTRAS = ["bench", "cuda", "docs", "image", "llm", "ray", "regex", "report", "tensorflow", "test"]


def test_extras_are_the_documented_ones(config: configparser.ConfigParser) -> None:
    assert sorted(config["options.extras_require"]) == EXTRAS


def test_files_of_the_package_that_are_no_modules_are_released(config: configparser.ConfigParser) -> None:
    package = ROOT / "mgx_numba"
    patterns = config["options.package_data"]["mgx_numba"].split()
    released = {path for pattern in patterns for path in package.glob(pattern)}
    others = {p for p in package.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
    assert others - released == set()


def test_each_package_of_mgx_numba_is_a_layer(config: configparser.ConfigParser) -> None:
    layers = set(re.findall(r"\w+", config["importlinter:contract:packages"]["layers"]))
    packages = {path.parent.name for path in (ROOT / "mgx_numba").glob("*/__init__.py")}
    assert packages <= layers
