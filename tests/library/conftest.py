"""Programs loaded from exported libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .loaded import Loaded
from .support import CC, CXX


@pytest.fixture(autouse=True, scope="module")
def kept_compilers() -> Iterator[None]:
    """Link libraries with the compilers of `support`, which cache their results."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, command in (("CC", CC), ("CXX", CXX)):
            if command is not None:
                patch.setenv(variable, command)
        yield


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Callable[[Any], Loaded]]:
    """A function that exports a compiled program and loads the library, which ends with the test."""
    made: list[Loaded] = []

    def load(program: Any) -> Loaded:
        made.append(Loaded(program.export_library(tmp_path, f"model{len(made)}", embed_weights=bool(made))))
        return made[-1]

    yield load
    for one in made:
        one.library.destroy(one.program)
