"""The finder of this package's modules by their bytecode files: what it takes, and what it leaves to importlib."""

from __future__ import annotations

import inspect
import os
import py_compile
import shutil
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import pytest

from mgx_numba import importing
from mgx_numba.importing import PREFIX, Finder

from ..running import said

SOURCE = "def twice(x):\n    return 2 * x\n"


@pytest.fixture(autouse=True)
def usual_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytecode files lie in ``__pycache__`` also where the tests' own lie elsewhere."""
    monkeypatch.setattr(sys, "pycache_prefix", None)


def written(path: Path, text: str = SOURCE, mode: py_compile.PycInvalidationMode | None = None) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    py_compile.compile(str(path), invalidation_mode=mode or py_compile.PycInvalidationMode.TIMESTAMP, doraise=True)
    return path


def loaded(spec: ModuleSpec | None) -> ModuleType:
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_module_is_as_importlib_makes_it(tmp_path: Path) -> None:
    source = written(tmp_path / "one.py")
    name = f"{PREFIX}sub.one"
    spec = Finder.find_spec(name, [str(tmp_path)])
    own, other = loaded(spec), loaded(PathFinder.find_spec(name, [str(tmp_path)]))
    assert spec is not None and isinstance(spec.loader, SourceFileLoader)
    for attribute in ("__name__", "__file__", "__cached__", "__package__", "__doc__"):
        assert getattr(own, attribute) == getattr(other, attribute)
    assert own.twice(4) == 8 and own.twice.__code__.co_filename == str(source)
    assert inspect.getsource(own.twice) == SOURCE
    assert spec.parent == f"{PREFIX}sub" and not spec.submodule_search_locations
    assert spec.loader.get_code(name) is not None  # also when asked again, as by runpy


def test_a_package(tmp_path: Path) -> None:
    written(tmp_path / "inner" / "__init__.py")
    name = f"{PREFIX}inner"
    spec, other = (finder.find_spec(name, [str(tmp_path)]) for finder in (Finder, PathFinder))
    assert spec is not None and other is not None
    assert (spec.parent, spec.origin, spec.cached) == (other.parent, other.origin, other.cached)
    assert loaded(spec).__path__ == loaded(other).__path__ == [str(tmp_path / "inner")]


def test_code_of_a_moved_tree_names_its_new_files(tmp_path: Path) -> None:
    written(tmp_path / "before" / "one.py")
    shutil.copytree(tmp_path / "before", tmp_path / "after")  # with the times of the files
    module = loaded(Finder.find_spec(f"{PREFIX}one", [str(tmp_path / "after")]))
    assert module.twice.__code__.co_filename == str(tmp_path / "after" / "one.py")


def test_other_bytecode_is_left_to_importlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str = f"{PREFIX}one") -> ModuleSpec | None:
        return Finder.find_spec(name, [str(tmp_path)])

    source = tmp_path / "one.py"
    assert found() is None  # no file
    source.write_text(SOURCE)
    assert found() is None  # no bytecode
    written(source, mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    assert found() is None
    written(source)
    assert found() is not None and found("other.one") is None and Finder.find_spec(f"{PREFIX}one") is None
    status = source.stat()
    source.write_text(SOURCE.replace("2 *", "3 *"))
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns + 2_000_000_000))
    assert found() is None  # the source is newer
    source.write_text(f"{SOURCE}\n")
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert found() is None  # the source has another size
    written(source)
    source.unlink()
    assert found() is None
    written(source)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "elsewhere"))
    assert found() is None


def test_other_finders_come_first() -> None:
    importing.install()
    assert sys.meta_path.count(Finder) == 1  # type: ignore[arg-type]
    assert sys.meta_path.index(Finder) < sys.meta_path.index(PathFinder)  # type: ignore[arg-type]


@pytest.mark.parametrize("variable", ["PYTHONOPTIMIZE", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"])
def test_settings_of_bytecode(variable: str, tmp_path: Path) -> None:
    text = "import mgx_numba.errors; print(mgx_numba.errors.__name__)"
    assert said(text, **{variable: 2 if variable == "PYTHONOPTIMIZE" else tmp_path}) == "mgx_numba.errors"
