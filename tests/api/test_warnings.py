"""Warnings point at the line that called the package, not at lines inside the package."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

import mgx_numba
from mgx_numba.api import options
from mgx_numba.messages import INFO, tell, warn
from mgx_numba.session import InferenceSession

from .test_guides import small_model
from .test_quantization import X, model


def _quantised() -> None:
    mgx_numba.quantize_int8(model(), mgx_numba.get_target("ref"))


def _quantised_by_option() -> None:
    model().compile("ref", use_int8=True)


def _told_by_compile() -> None:
    model().compile("ref", device_id=3)


def _not_compiled() -> None:
    model().run({"input": X})


@pytest.mark.parametrize("call", [_quantised, _quantised_by_option, _told_by_compile, _not_compiled])
def test_a_warning_points_at_the_caller(call: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "warned", set())
    with pytest.warns(Warning) as told:
        call()
    assert {(t.filename, t.lineno) for t in told} == {(__file__, call.__code__.co_firstlineno + 1)}


def test_a_session_points_at_the_caller() -> None:
    with pytest.warns(RuntimeWarning, match="NoSuchProvider") as told:
        InferenceSession(small_model().SerializeToString(), providers=["NoSuchProvider"])
    assert [t.filename for t in told] == [__file__]


def test_a_warning_of_a_thread_without_a_caller_is_told() -> None:
    with pytest.warns(RuntimeWarning, match="told"):
        thread = threading.Thread(target=warn, args=("told", RuntimeWarning))
        thread.start()
        thread.join()


def test_a_logger_is_looked_up_once(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Passes log each rewrite and refusal, and each message looked its logger up, which takes a lock."""
    tell("looked_up_once", INFO, "first")
    with caplog.at_level(INFO, "mgx_numba"), monkeypatch.context() as changed:
        changed.setattr(logging, "getLogger", lambda *_: pytest.fail("looked up again"))
        tell("looked_up_once", INFO, "second %d", 2)
    assert [(r.name, r.getMessage()) for r in caplog.records] == [("mgx_numba.looked_up_once", "second 2")]
