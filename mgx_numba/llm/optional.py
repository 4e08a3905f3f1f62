"""Import of the packages that the extra ``mgx_numba[llm]`` installs."""

from __future__ import annotations

import importlib
from types import ModuleType

from ..errors import UnsupportedError


def required(module: str, purpose: str) -> ModuleType:
    """Import a module of an optional package.

    Args:
        module: the module's full name.
        purpose: the feature that needs the package, for the error.

    Raises:
        UnsupportedError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise
        package = module.partition(".")[0]
        raise UnsupportedError(
            f"{purpose} needs the package {package}, which is not installed (pip install 'mgx_numba[llm]')"
        ) from error
