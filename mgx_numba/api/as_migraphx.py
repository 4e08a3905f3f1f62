"""Registration of this package under the name ``migraphx``, for this process or for a whole Python environment."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

from ..errors import MgxError, OptionError
from ..graph.atomic_file import replace_file

_NAME = "migraphx"
_MARK = "Written by mgx_numba.install_as_migraphx(permanently=True)"
_PACKAGE = __name__.partition(".")[0]

_MODULE = f'''"""{_MARK}: this name is {_PACKAGE}'s."""

import sys

import {_PACKAGE}

sys.modules[__name__] = {_PACKAGE}
'''

# A shell starts it, since the first line of a file cannot name every path; Python takes that line for a string.
_SCRIPT = f"""#!/bin/sh
'''exec' "{{python}}" "$0" "$@"
' '''
# {_MARK}
import sys

from {_PACKAGE}.driver.main import main

sys.exit(main())
"""


def install_as_migraphx(permanently: bool = False) -> None:
    """Make ``import migraphx`` import this package in this process.

    Args:
        permanently: also do so in every process of this environment, and install the command ``migraphx-driver``. This
            needs permission to write to the environment. `uninstall_as_migraphx` undoes both.

    Raises:
        OptionError: another ``migraphx`` (perhaps MIGraphX itself) is installed; the message gives its location.
        MgxError: a file cannot be written.
    """
    package = sys.modules[_PACKAGE]
    other = sys.modules.get(_NAME, package)
    if other is not package:
        raise OptionError(f"{_NAME!r} is imported already, from {getattr(other, '__file__', 'nowhere')}")
    if permanently:
        files = _files()
        for path in files:
            _refuse_others(path)
        for path, (text, mode) in files.items():
            _write(path, text.encode(), mode)
    sys.modules[_NAME] = package


def uninstall_as_migraphx() -> None:
    """Undo `install_as_migraphx` in this process and in the environment; do nothing if it was not called.

    Raises:
        MgxError: a file cannot be removed.
    """
    if sys.modules.get(_NAME) is sys.modules[_PACKAGE]:
        del sys.modules[_NAME]
    for path in _files():
        if _is_ours(path):
            try:
                path.unlink()
            except OSError as error:
                raise MgxError(f"{path}: cannot be removed: {error.strerror or error}") from None
    importlib.invalidate_caches()


def _files() -> dict[Path, tuple[str, int]]:
    """Return text and permissions, by path, of the files that a permanent installation consists of."""
    module = Path(sysconfig.get_path("purelib"), f"{_NAME}.py")
    script = Path(sysconfig.get_path("scripts"), f"{_NAME}-driver")
    return {module: (_MODULE, 0o666), script: (_SCRIPT.format(python=sys.executable), 0o777)}


def _refuse_others(path: Path) -> None:
    spec = importlib.util.find_spec(_NAME) if _NAME not in sys.modules else None
    found = None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()), None)
    for taken in (path if os.path.lexists(path) else None, None if found is None else Path(found)):
        if taken is not None and not _is_ours(taken):
            raise OptionError(f"{taken} is not of {_PACKAGE}; remove it first")


def _write(path: Path, data: bytes, mode: int) -> None:
    try:
        replace_file(path, lambda write: write(data), mode)
    except OSError as error:
        raise MgxError(f"{path}: cannot be written: {error.strerror or error}") from None


def _is_ours(path: Path) -> bool:
    try:
        return _MARK in path.read_text(errors="replace")
    except OSError:
        return False
