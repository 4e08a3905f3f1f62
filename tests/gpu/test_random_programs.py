"""Random programs through the whole gpu pipeline have the values of ref."""

from __future__ import annotations

import pytest

from mgx_numba.runtime.gpu.cuda import cuda_engine

from .programs import check, interpreter, random_program


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_have_the_values_of_ref_when_interpreted(seed: int) -> None:
    check(random_program(seed), interpreter())


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(60))
def test_random_programs_have_the_values_of_ref_on_the_device(seed: int) -> None:
    check(random_program(seed), cuda_engine())
