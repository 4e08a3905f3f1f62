"""`bench.packages`: comparison of packages' results. The packages are installed by hand, see its text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.package_cases import CASES, INSTALLED, _page, _voice
from bench.packages import NUMBERS, differences

SAME = {"text": ["a", "b"], "scores": [0.5, 1.0], "boxes": [[1, 2, 300, 4]], "none": None, "nan": float("nan")}


def test_every_case_says_what_it_installs() -> None:
    assert CASES.keys() == INSTALLED.keys() and len(CASES) >= 10


@pytest.mark.parametrize(
    ("mine", "told"),
    [
        (SAME, []),
        ({**SAME, "scores": [0.5 + NUMBERS / 2, 1.0]}, []),
        ({**SAME, "scores": [0.5 + NUMBERS * 2, 1.0]}, ["result.scores[0]"]),
        ({**SAME, "scores": [0.5]}, ["result.scores"]),
        ({**SAME, "scores": [float("nan"), 1.0]}, ["result.scores[0]"]),
        ({**SAME, "text": ["a", "B"]}, ["result.text[1]"]),
        ({**SAME, "boxes": [[1, 2, 301, 5]]}, ["result.boxes[0][2]", "result.boxes[0][3]"]),
        ({**SAME, "none": 0}, ["result.none"]),
        ({"text": []}, ["result"]),
    ],
)
def test_differences_are_found(mine: Any, told: list[str]) -> None:
    assert [line.partition(":")[0] for line in differences(mine, SAME)] == told


def test_inputs_are_the_same_in_every_process() -> None:
    page = np.asarray(_page())
    assert page.ndim == 3 and page.min() == 0 and page.max() == 255
    voice = _voice(1.5)
    assert voice.dtype == np.float32 and 0.4 < np.abs(voice).max() < 0.6 and np.array_equal(voice, _voice(1.5))
