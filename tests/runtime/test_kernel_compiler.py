"""Kernel text to object: refused texts and their error messages."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mgx_numba.codegen.cpu import host, identity
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.cpu.toolchain.compiler import compile_object, inspect
from mgx_numba.codegen.cpu.toolchain.loader import load
from mgx_numba.codegen.elf import read_object
from mgx_numba.codegen.identity import _digest
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.workers import batch
from mgx_numba.errors import CompileError, FormatError
from mgx_numba.runtime.host.native import NativeKernel

from ..running import at_once

HEADER = "def kernel(args, begin, end):\n"


def test_object_defines_only_the_kernel(add_kernel: KernelSource) -> None:
    symbols = read_object(compile_object(add_kernel))
    assert symbols.defined == {add_kernel.symbol}
    assert not symbols.undefined


def test_library_calls_are_the_only_undefined_symbols() -> None:
    source = cpu_kernel("copy_kernel", HEADER + "    copy_bytes(words_at(args, 0), words_at(args, 1), args[2])\n")
    assert read_object(compile_object(source)).undefined == {"memcpy"}


def test_identity_is_the_text_not_the_name(add_kernel: KernelSource) -> None:
    renamed = cpu_kernel("other_kernel", add_kernel.text, "%1 = add(x, y)")
    changed = cpu_kernel("add_kernel", add_kernel.text + "\n")
    assert renamed.symbol == add_kernel.symbol != changed.symbol
    assert len(add_kernel.symbol) == len("mgx_") + 24


def test_identity_follows_the_cpu_features(add_kernel: KernelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    before = add_kernel.symbol
    monkeypatch.setenv("MGX_CPU_FEATURES", f"-{min(host.features())}")
    assert cpu_kernel("add_kernel", add_kernel.text).symbol != before


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("text", [HEADER + "    args[0] = begin\n", HEADER + "    print(begin)\n"])
def test_the_collector_of_cycles_is_left_as_it_was(enabled: bool, text: str) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with contextlib.suppress(CompileError):
            compile_object(cpu_kernel("some_kernel", text))
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_every_file_of_the_language_exists() -> None:
    package = Path(identity.__file__).parents[1]
    assert [pattern for pattern in identity.MEANING if not list(package.glob(pattern))] == []


@pytest.mark.parametrize(
    "name",
    ["vocabulary.py", "arith.py", "tile_writer.py", "compiler.py", "frontend.py", "inference.py", "lowering.py"],
)
def test_identity_follows_the_compiler(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original, before = Path.read_bytes, _digest(identity.MEANING)
    monkeypatch.setattr(Path, "read_bytes", lambda path: original(path) + b"#" * (path.name == name))
    assert _digest(identity.MEANING) != before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEADER + "    y = unknown(args)\n", "line 2"),
        (HEADER + "    words_at(begin, 1)\n", "words_at|Cannot cast"),
        (HEADER + "    words_at(args)\n", "words_at"),
        (HEADER + "    args[0] = sum((begin, end))\n", "no kernel may call"),
        (HEADER + "    print(begin)\n", "no kernel may call"),
        (HEADER + "    raise ValueError\n", "line 2: a kernel cannot contain Raise"),
        ("def kernel(args:\n", "line 1"),
        ("def kernel(args, begin):\n    return\n", "3 argument"),
        ("x = 1\n", "no function named kernel"),
        ("x = 1 / 0\n", "ZeroDivisionError"),
    ],
)
def test_refusal_names_kernel_line_and_origin(text: str, says: str) -> None:
    with pytest.raises(CompileError, match=says) as caught:
        compile_object(cpu_kernel("bad_kernel", text, origin="%7 = erf(%6)"))
    assert "bad_kernel" in str(caught.value)
    assert "%7 = erf(%6)" in str(caught.value)


def test_refusal_leaves_no_llvm_object_to_the_garbage_collector() -> None:
    """Collecting an LLVM module after the objects that it depends on crashed the process."""
    for i in range(5):
        try:
            compile_object(cpu_kernel("bad_kernel", HEADER + f"    print({i})\n"))
        except CompileError as error:
            error.args = (error,)  # a cycle, so that only the collector frees the frames of the traceback
    gc.collect()


def test_inspection_shows_each_stage(add_kernel: KernelSource) -> None:
    stages = inspect(add_kernel)
    assert "define" in stages.lowered and "define" in stages.optimised
    assert add_kernel.symbol in stages.assembly


def test_calls_were_typed_again_in_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core import types

    asked = []
    original = types.Function.get_call_type

    def noted(*arguments: object) -> object:
        asked.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(types.Function, "get_call_type", noted)
    text = HEADER + "    x = imin(args[1], begin) + 7\n    while x < end:\n        x = x * 2 + imin(args[2], x)\n"
    for number in range(2):
        asked.clear()
        compile_object(cpu_kernel("typed_kernel", f"{text}    args[0] = x  # {number}\n"))
        assert number == 0 or not asked


def test_variable_of_one_branch_or_of_the_iteration_before() -> None:
    """No variable is written when its life ends, so what was zero there is now anything."""
    body = """
    kept = begin
    for k in range(begin, end):
        if k % 3 == 1:
            seen = k * 5
            kept = kept + seen
        elif k % 3 == 2:
            kept = kept ^ k
        args[k] = kept
"""
    wanted, kept = [], 0
    for k in range(64):
        kept = kept + k * 5 if k % 3 == 1 else kept ^ k if k % 3 == 2 else kept
        wanted.append(kept)
    words = np.zeros(64, np.int64)
    (address,) = load([cpu_kernel("branches_kernel", HEADER + body)])
    NativeKernel(address)(words.ctypes.data, 0, 64)
    assert words.tolist() == wanted


def test_threads_may_compile_at_once(distinct: Callable[[int], KernelSource]) -> None:
    sources = [distinct(i) for i in range(100, 108)]
    objects: dict[str, bytes] = {}

    def work(source: KernelSource) -> None:
        objects[source.symbol] = compile_object(source)

    at_once(work, sources)
    assert all(source.symbol in read_object(objects[source.symbol]).defined for source in sources)


def test_worker_process_compiles_the_same(distinct: Callable[[int], KernelSource]) -> None:
    sources = [distinct(i) for i in range(200, 240)]
    seen: list[str] = []
    objects = batch.compile_objects(sources, workers=1, finished=lambda source, data: seen.append(source.symbol))
    assert sorted(seen) == sorted(source.symbol for source in sources)
    assert all(source.symbol in read_object(data).defined for source, data in zip(sources, objects, strict=True))


def test_worker_answers_by_its_protocol(distinct: Callable[[int], KernelSource]) -> None:
    process = batch.start_worker()
    good, bad = distinct(1), cpu_kernel("bad_kernel", "x = 1\n")
    try:
        assert batch.read_message(process.stdout) == {"ready": True}
        for source in (good, bad):
            fields = {"backend": source.backend, "name": source.name, "text": source.text, "origin": ""}
            batch.write_message(process.stdin, {"symbol": source.symbol, **fields})
        assert read_object(batch.read_message(process.stdout)["object"]).defined == {good.symbol}
        assert "bad_kernel" in batch.read_message(process.stdout)["error"]
    finally:
        batch.stop_worker(process)
    assert process.returncode == 0


@pytest.mark.parametrize("death", ["import sys; sys.exit(3)", "import nothing_of_this_name"])
def test_dead_worker_costs_only_time(
    death: str, distinct: Callable[[int], KernelSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "WORKER_COMMAND", (sys.executable, "-c", death))
    sources = [distinct(i) for i in range(300, 303)]
    objects = batch.compile_objects(sources, workers=2)
    assert [read_object(data).defined for data in objects] == [{source.symbol} for source in sources]


def test_the_longest_kernel_was_begun_last(distinct: Callable[[int], KernelSource]) -> None:
    sources = [distinct(1), cpu_kernel("long_kernel", distinct(2).text + "    # long\n" * 9), distinct(3)]
    begun: list[str] = []
    objects = batch.compile_objects(sources, workers=0, finished=lambda source, data: begun.append(source.symbol))
    assert begun == [sources[k].symbol for k in (1, 0, 2)]
    assert [read_object(data).defined for data in objects] == [{source.symbol} for source in sources]


def test_short_texts_of_register_tiles_were_taken_for_short_work(distinct: Callable[[int], KernelSource]) -> None:
    tile = "def kernel(args, begin, end):\n" + "    tile_float32(args, begin, end, 4, 1, 4, 1, 0)\n" * 2
    longer = distinct(1).text + "    # long\n" * 99
    assert len(tile) < len(longer)
    assert batch.effort(cpu_kernel("tile_kernel", tile)) > batch.effort(cpu_kernel("long_kernel", longer))


def test_workers_only_when_they_pay() -> None:
    assert batch.worker_count(5, cpus=8) == 0
    assert batch.worker_count(30, cpus=1) == 0
    assert batch.worker_count(30, cpus=2) == 2
    assert batch.worker_count(1000, cpus=4) == 4


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(100), bytes(64)])
def test_damaged_object_file_is_a_format_error(data: bytes) -> None:
    if data.endswith(bytes(100)):
        assert not read_object(data).defined
    else:
        with pytest.raises(FormatError):
            read_object(data)
