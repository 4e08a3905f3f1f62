"""Saving over an older file, interrupted at any moment, leaves the complete old file or the complete new one.

``python -m tests.api.test_interrupted_saves 60`` does so at that many moments, with and without files that have no name
while they are written.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mgx_numba.codegen.files import default_folder

from ..running import said

MOMENTS = 6
"""Number of interruptions, a third for each signal."""

SCRIPT = """
import os, random, signal, sys, time
import numpy as np
import mgx_numba as migraphx

folder, moments, seed, unnamed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
if not unnamed:
    del os.O_TMPFILE
path = os.path.join(folder, "saved", "p.mxr")
os.mkdir(os.path.dirname(path))

def compiled(rows):
    p = migraphx.program()
    m = p.get_main_module()
    x = m.add_parameter("x", migraphx.shape(type="float_type", lens=[1, rows]))
    w = m.add_literal(np.random.default_rng(rows).standard_normal((rows, 512), dtype=np.float32))
    m.add_return([m.add_instruction(migraphx.op("dot"), [x, w])])
    p.compile(migraphx.get_target("cpu"), num_threads=1)
    return p

def read(path):
    with open(path, "rb") as file:
        return file.read()

programs = [compiled(rows) for rows in (900, 1000)]
whole = set()
for p in programs:
    start = time.perf_counter()
    p.save(path)
    seconds = time.perf_counter() - start
    whole.add(read(path))
assert len(whole) == 2

def save_until_ended(ready):
    try:
        os.write(ready, b".")
        while True:
            for p in programs:
                p.save(path)
    except KeyboardInterrupt:
        os._exit(0)
    os._exit(1)

rng = random.Random(seed)
ends = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
torn = left = replaced = 0
before = read(path)
for moment in range(moments):
    end = ends[moment % len(ends)]
    came, ready = os.pipe()
    child = os.fork()
    if child == 0:
        save_until_ended(ready)
    os.read(came, 1)
    os.close(came)
    os.close(ready)
    time.sleep(2 * seconds * rng.random())
    os.kill(child, end)
    _, status = os.waitpid(child, 0)
    assert status == 0 if end == signal.SIGINT else os.WTERMSIG(status) == end, status
    now = read(path)
    torn += now not in whole
    replaced += now != before
    before = now
    found = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names if name.endswith(".tmp")]
    if end == signal.SIGINT:
        left += len(found)
    for name in found:  # of one that was killed between giving the file a name and moving it into place
        os.unlink(name)
programs[0].save(path)
loaded = migraphx.load(path)
x = np.ones((1, 900), np.float32)
assert np.array_equal(np.asarray(loaded.run({"x": x})[0]), np.asarray(programs[0].run({"x": x})[0]))
print("torn", torn, "left", left, "replaced", replaced)
"""


def ends_of_saves(folder: Path, moments: int, seed: int, unnamed: bool) -> str:
    """Return the script's output for interrupted saves in ``folder`` and in a cache folder in it."""
    cache = folder / "cache"
    cache.mkdir()
    objects = default_folder() / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    (cache / "objects").symlink_to(objects.resolve())
    return said(SCRIPT, folder, moments, seed, int(unnamed), seconds=60 + moments, MGX_CACHE_DIR=cache)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="files without names, and SIGKILL")
@pytest.mark.parametrize("unnamed", [True, False])
def test_a_save_that_is_cut_short_leaves_a_whole_file(unnamed: bool, tmp_path: Path) -> None:
    """An interrupted save leaves no further file, neither in the target's folder nor in the cache folder."""
    assert ends_of_saves(tmp_path, MOMENTS, 0, unnamed).startswith("torn 0 left 0 replaced ")


if __name__ == "__main__":
    import tempfile

    for way in (True, False):
        with tempfile.TemporaryDirectory() as temporary:
            print("unnamed" if way else "named", ends_of_saves(Path(temporary), int(sys.argv[1]), 1, way))
