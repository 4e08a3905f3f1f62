"""The interpreter runs correct kernels, and reports faults with their position."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.kernel import gpu_grid, gpu_kernel
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.codegen.launch import Grid
from mgx_numba.runtime.memory import address_of, aligned_empty

from ..interpreter.lanes import KernelFault
from ..interpreter.memory import Memory
from ..interpreter.run import interpret

THREADS = 64


def run(lines: list[str], out: np.ndarray, blocks: int = 1) -> None:
    memory = Memory()
    memory.add(address_of(out), out.view(np.uint8), "out")
    kernel = gpu_kernel("k", ["out = pointer_float32(args, 0)", *lines], THREADS, 1)
    interpret(kernel, [address_of(out)], gpu_grid(blocks, THREADS), memory)


def zeros(count: int) -> np.ndarray:
    out = aligned_empty((count,), "float32")
    out[:] = 0
    return out


def test_blocks_and_threads_have_their_numbers() -> None:
    out = zeros(2 * THREADS)
    run(["i = block_index(0) * 64 + thread_index(0)", "store_scalar(out, i, cast_float32(i))"], out, blocks=2)
    assert np.array_equal(out, np.arange(2 * THREADS))


def test_a_barrier_lets_threads_read_what_others_wrote() -> None:
    out = zeros(THREADS)
    lines = [
        "s = shared_float32(64)",
        "t = thread_index(0)",
        "store_scalar(s, t, cast_float32(t))",
        "barrier()",
        "store_scalar(out, t, load_scalar(s, 63 - t))",
    ]
    run(lines, out)
    assert np.array_equal(out, np.arange(THREADS)[::-1])
    for missing, said in (
        ("barrier()", "reads bytes? .* without a barrier between"),
        (lines[2], "which nobody has written"),
    ):
        with pytest.raises(KernelFault, match=rf"thread \d+, line \d+ .*{said}"):
            run([line for line in lines if line != missing], out)


def test_shuffles_exchange_within_warps() -> None:
    out = zeros(THREADS)
    run(["t = thread_index(0)", "store_scalar(out, t, shuffle_xor(cast_float32(t), 5))"], out)
    assert np.array_equal(out, np.arange(THREADS) ^ 5)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["store_scalar(out, thread_index(0), 1.0)"], r"thread 8, .*writes bytes 32 to 36 of out, which has 32"),
        (["store_scalar(out, 0, 1.0)"], r"thread 1, .*writes byte 0 of out, which thread 0 of block 0 wrote"),
        (
            ["if thread_index(0) == 0:", "    v = load_aligned(out, 1, 4)"],
            r"byte 4 of out is not at a multiple of 16",
        ),
        (["if thread_index(0) < 3:", "    barrier()"], r"never meet: 3 threads .* wait at barrier in line 8; 61 have"),
        (["if thread_index(0) < 3:", "    x = shuffle_xor(1.0, 1)"], r"3 threads .* wait at shuffle_xor in line 8"),
    ],
)
def test_what_no_kernel_may_do_is_reported(lines: list[str], said: str) -> None:
    with pytest.raises(KernelFault, match=said):
        run(lines, zeros(8))


def test_writes_of_two_blocks_to_one_place_race() -> None:
    lines = ["if thread_index(0) == 0:", "    store_scalar(out, 0, 1.0)"]
    run(lines, zeros(8))
    with pytest.raises(KernelFault, match=r"block \(1, 0, 0\), thread 0, .*which thread 0 of block 0 wrote"):
        run(lines, zeros(8), blocks=2)


def run_grid(lines: list[str], blocks: int = 3, cooperative: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Run a grid of blocks of 64 threads that share floats and a counter."""
    memory, out, counter = Memory(), zeros(blocks * THREADS), aligned_empty((4,), "int32")
    counter[:] = 0
    for name, array in (("out", out), ("counter", counter)):
        memory.add(address_of(array), array.view(np.uint8), name)
    head = ["out = pointer_float32(args, 0)", "counter = pointer_int32(args, 1)", "blocks = args[2]",
            "b = block_index(0)", "i = b * 64 + thread_index(0)"]  # fmt: skip
    kernel = gpu_kernel("k", [*head, *lines], THREADS, 3)
    grid = Grid((blocks, 1, 1), (THREADS, 1, 1), cooperative=cooperative)
    interpret(kernel, [address_of(out), address_of(counter), blocks], grid, memory)
    return out, counter


def test_a_barrier_of_a_grid_lets_blocks_read_what_others_wrote() -> None:
    lines = [
        "store_scalar(out, i, cast_float32(i))",
        "grid_barrier(counter, blocks)",
        "x = load_scalar(out, blocks * 64 - 1 - i)",
        "grid_barrier(counter, 2 * blocks)",
        "store_scalar(out, i, x)",
        "grid_leave(counter, 3 * blocks)",
    ]
    out, counter = run_grid(lines)
    assert np.array_equal(out, np.arange(out.size)[::-1])
    assert not counter.any()
    for missing in (1, 3):
        with pytest.raises(KernelFault, match="without a barrier between"):
            run_grid([*lines[:missing], *lines[missing + 1 :]])


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["grid_barrier(counter, 2)"], r"line 11 .*waits for \[2\] blocks; 3 have come"),
        (
            ["if b < 1:", "    grid_barrier(counter, blocks)"],
            r"never meet: 64 threads .* wait at grid_barrier in line 12",
        ),
        (["if thread_index(0) < 1:", "    grid_barrier(counter, blocks)"], r"never meet: 1 threads"),
    ],
)
def test_barriers_of_a_grid_that_are_never_passed_are_reported(lines: list[str], said: str) -> None:
    with pytest.raises(KernelFault, match=said):
        run_grid(lines)


def test_blocks_of_a_launch_that_is_not_cooperative_do_not_meet() -> None:
    with pytest.raises(KernelFault, match="not cooperative"):
        run_grid(["grid_barrier(counter, blocks)"], blocks=1, cooperative=False)


LAST_BLOCK = [
    "store_scalar(out, i, cast_float32(i))",
    "last = shared_int32(1)",
    "barrier()",
    "if thread_index(0) == 0:",
    "    store_scalar(last, 0, last_block(counter, blocks))",
    "barrier()",
    "if load_scalar(last, 0) == 1:",
    "    x = load_scalar(out, imod(i + 64, blocks * 64))",
    "    store_scalar(out, i, x)",
]


def test_the_last_block_reads_what_others_wrote() -> None:
    out, counter = run_grid(LAST_BLOCK, cooperative=False)
    assert np.array_equal(out, [*range(128), *range(64)])
    assert not counter.any()
    for told in ("load_scalar(last, 0) < 2", "b == 1"):  # some block is not the last
        with pytest.raises(KernelFault, match="without a barrier between"):
            run_grid([line.replace("load_scalar(last, 0) == 1", told) for line in LAST_BLOCK], cooperative=False)


@pytest.mark.parametrize("name, wanted", [("sm_80", "atom.acq_rel.gpu"), ("gfx942", "global_atomic_add")])
def test_the_last_block_is_found_by_one_addition(name: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    head = ["out = pointer_float32(args, 0)", "counter = pointer_int32(args, 1)", "blocks = args[2]",
            "b = block_index(0)", "i = b * 64 + thread_index(0)"]  # fmt: skip
    text = assembly(gpu_kernel("k", [*head, *LAST_BLOCK], THREADS, 3), ARCHITECTURES[name])
    assert text.count(wanted) == 1


def run_tagged(lines: list[str], cooperative: bool = True) -> np.ndarray:
    """Two blocks, whose words have a float and a tag."""
    memory, out, words = Memory(), zeros(2 * THREADS), aligned_empty((2 * THREADS,), "int64")
    words[:] = 0
    for name, array in (("out", out), ("words", words)):
        memory.add(address_of(array), array.view(np.uint8), name)
    head = ["out = pointer_float32(args, 0)", "words = pointer_int64(args, 1)", "t = thread_index(0)"]
    head += ["i = block_index(0) * 64 + t", "there = (1 - block_index(0)) * 64 + t - imod(t, 4)"]
    kernel = gpu_kernel("k", [*head, *lines], THREADS, 2)
    grid = Grid((2, 1, 1), (THREADS, 1, 1), cooperative=cooperative)
    interpret(kernel, [address_of(out), address_of(words)], grid, memory)
    return out


def test_threads_wait_for_tagged_words_of_other_blocks() -> None:
    lines = [
        "tagged_store(words, i, cast_float32(i), 7)",
        "v = tagged_load4(words, there, 7)",
        "if imod(t, 4) == 0:",
        "    store(out, i, v)",
    ]
    assert np.array_equal(run_tagged(lines), np.roll(np.arange(2 * THREADS), THREADS))
    for changed, said in (
        (["tagged_store(words, i, cast_float32(i), 6)", *lines[1:]], "never meet: 64 threads .* at tagged_load4"),
        (
            ["tagged_store(words, i, cast_float32(i), 8)", *lines[1:]],
            r"waits for tag 7 of words that have \[8, 8, 8, 8\]",
        ),
        ([lines[0], "v = tagged_load4(words, there + 1, 7)"], "no four words at 16 bytes"),
    ):
        with pytest.raises(KernelFault, match=said):
            run_tagged(changed)
    with pytest.raises(KernelFault, match="not cooperative"):
        run_tagged(lines, cooperative=False)
