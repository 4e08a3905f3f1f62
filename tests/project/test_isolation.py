"""The suite is kept apart from the user's cache folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from mgx_numba.codegen.files import default_folder
from mgx_numba.codegen.tuning.database import default_path


def test_no_test_sees_the_users_tuning_records() -> None:
    assert Path(tempfile.gettempdir()).resolve() in default_path().resolve().parents
    assert default_folder().name.startswith("mgx_numba_tests_")
    assert "MIGRAPHX_PROBLEM_CACHE" not in os.environ
