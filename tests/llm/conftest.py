"""Compiled models that the tests of a session share."""

import pytest

from mgx_numba.llm import Model
from tests.llm.tiny import KINDS, tiny, write


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """Return weights and model by kind."""
    folder = tmp_path_factory.mktemp("models")
    return {kind: (w := tiny(kind), Model(write(w, folder / kind), num_threads=1)) for kind in KINDS}
