"""The target for users: missing components are reported, and importing the package loads none of them."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba
from mgx_numba.codegen.gpu.driver import library
from mgx_numba.codegen.gpu.driver.library import missing
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import DeviceError, UnsupportedError
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.cuda import cuda_engine

from ..running import at_once, said
from .programs import compiled


@pytest.mark.usefixtures("no_driver")
def test_without_a_driver_the_target_says_so() -> None:
    with pytest.raises(UnsupportedError, match="'gpu' is not available here: .*no_such_library.so cannot be loaded"):
        mgx_numba.get_target("gpu")
    with pytest.raises(DeviceError, match="NVIDIA's driver is not installed"):
        cuda_engine(60)  # no test has opened that one


@pytest.mark.usefixtures("no_driver")
def test_a_missing_driver_was_searched_for_by_each_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed search of the library folders took a fifth of the time of small interpreted programs."""
    searches = []

    def search(name: str, *args: object, **options: object) -> None:
        searches.append(name)
        raise OSError

    monkeypatch.setattr(library, "_NAMES", ("no_library_a.so", "no_library_b.so"))
    monkeypatch.setattr(library.ctypes, "CDLL", search)
    for _ in range(3):
        assert "no_library_a.so cannot be loaded" in missing()
    assert searches == ["no_library_a.so", "no_library_b.so"]


def test_failed_calls_are_told_in_words() -> None:
    class Library:
        def __getattr__(self, name: str) -> object:
            return lambda *arguments: 0

    driver = library.Driver.__new__(library.Driver)
    driver.library = Library()
    assert "not enough memory" in driver.describe("cuMemAlloc_v2", 2)
    assert "memory that it may not touch" in driver.describe("cuStreamSynchronize", 700)
    assert driver.describe("cuInit", 100).startswith("cuInit failed: status 100")


def test_importing_the_package_loads_nothing_of_the_target() -> None:
    code = "import sys, mgx_numba; print([n for n in sys.modules if n.startswith('mgx_numba') and '.gpu' in n])"
    assert said(code) == "[]"


@pytest.mark.skipif(not missing(), reason="there is a device")
def test_compiling_without_a_device_says_what_is_missing() -> None:
    with pytest.raises(UnsupportedError, match=r"available: ref, cpu"):
        mgx_numba.get_target("gpu")


@pytest.mark.gpu
def test_threads_run_one_program_at_once() -> None:
    program = Program()
    x = program.main.add_parameter("x", Shape(Type.float_type, (64, 100)))
    program.main.add_return([program.main.add_instruction("softmax", [x], axis=1)])
    made = compiled(program, cuda_engine())

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(50):
            values = rng.standard_normal((64, 100)).astype(np.float32)
            e = np.exp(values - values.max(1, keepdims=True))
            np.testing.assert_allclose(made.run({"x": values})[0], e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)

    at_once(work, range(4))
