"""`install_as_migraphx`: unchanged scripts, in this process and in a separate environment."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mgx_numba
from mgx_numba.errors import MgxError, OptionError

SCRIPT = """
import migraphx
from migraphx import shape
program = migraphx.program()
main = program.get_main_module()
x = main.add_parameter("x", shape(type="float", lens=[2]))
main.add_return([main.add_instruction(migraphx.op("neg"), [x])])
program.compile(migraphx.get_target("ref"))
print(program.run({"x": migraphx.generate_argument(migraphx.shape(lens=[2]))})[0].get_shape())
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders that stand for those of an environment, and no ``migraphx``, before or after."""
    folders = {"purelib": tmp_path / "site", "scripts": tmp_path / "bin"}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(folders[name]))
    monkeypatch.syspath_prepend(folders["purelib"])
    monkeypatch.setitem(sys.modules, "migraphx", mgx_numba)
    monkeypatch.delitem(sys.modules, "migraphx")
    return tmp_path


def test_in_this_process(environment: Path) -> None:
    with pytest.raises(ImportError):
        importlib.import_module("migraphx")
    mgx_numba.install_as_migraphx()
    assert importlib.import_module("migraphx") is mgx_numba
    mgx_numba.install_as_migraphx()
    mgx_numba.uninstall_as_migraphx()
    assert "migraphx" not in sys.modules and not list(environment.glob("*/*"))


def test_for_an_environment(environment: Path) -> None:
    for _ in range(2):
        mgx_numba.install_as_migraphx(permanently=True)
    paths = os.pathsep.join([str(environment / "site"), str(Path(mgx_numba.__file__).parents[1])])
    process = {**os.environ, "PYTHONPATH": paths}

    def run(*command: str | Path) -> str:
        return subprocess.run(command, env=process, check=True, capture_output=True, text=True).stdout

    assert run(sys.executable, "-c", SCRIPT) == "float_type, {2}, {1}\n"
    assert "leaky_relu" in run(environment / "bin" / "migraphx-driver", "op", "-l").split()
    mgx_numba.uninstall_as_migraphx()
    assert [path.name for path in environment.glob("*/*") if path.name != "__pycache__"] == []
    mgx_numba.uninstall_as_migraphx()


def test_another_migraphx_is_left_alone(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = environment / "site" / "migraphx.py"
    other.write_text("")
    with pytest.raises(OptionError, match=r"migraphx.py is not of mgx_numba; remove it first"):
        mgx_numba.install_as_migraphx(permanently=True)
    mgx_numba.uninstall_as_migraphx()
    assert other.exists() and not (environment / "bin" / "migraphx-driver").exists()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "migraphx", importlib.import_module("migraphx"))
        with pytest.raises(OptionError, match="'migraphx' is imported already, from .*migraphx.py"):
            mgx_numba.install_as_migraphx()


def test_a_folder_that_cannot_be_written_is_named(environment: Path) -> None:
    (environment / "bin").rmdir()
    with pytest.raises(MgxError, match=r"migraphx-driver: cannot be written: .*there is no folder"):
        mgx_numba.install_as_migraphx(permanently=True)
    assert "migraphx" not in sys.modules
