"""`mgx-numba-driver` for a machine whose `gpu` is the CPU: `python -m tests.guide_programs.driver`."""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

import mgx_numba
from mgx_numba.driver.main import main
from mgx_numba.driver.serving import service


def _get_target(name: str) -> Any:
    return mgx_numba.get_target("cpu" if name == "gpu" else name)


if __name__ == "__main__":
    with mock.patch.object(service, "get_target", _get_target):
        sys.exit(main())
