"""Saved programs to mutate; together they contain every part of the format."""

from __future__ import annotations

import random
from pathlib import Path
from unittest import mock

import mgx_numba as migraphx
from mgx_numba.graph import mxr, wire
from mgx_numba.graph.mxr import save_program
from tests.cpu.random_programs import Builder
from tests.graph.test_mxr import PROGRAMS
from tests.tuning.support import network, record

__all__ = ["LONGEST_BIN", "write_examples"]

LONGEST_BIN = 2000
"""In place of 4 GiB, so that the files hold blobs that are too long for a msgpack binary."""

RANDOM_PROGRAMS = 40
"""Programs of random operators, for the shape rules and attributes of all of them."""


def write_examples(folder: Path) -> list[Path]:
    """Write ``*.msgpack`` and ``*.json`` files, sorted by name: programs as parsed, compiled for ``ref``, and compiled
    for ``cpu`` with tuning records, one with its machine code too; random programs, to be compiled for ``cpu``."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = {build.__name__: migraphx.program.wrap(build()) for build in PROGRAMS}
    programs["opened"] = migraphx.program.wrap(PROGRAMS[0]())
    programs["opened"].portable.open_dims = {"x": {0: "batch", 2: ""}}
    programs["compiled_ref"] = migraphx.program.wrap(PROGRAMS[0]()).compile(migraphx.get_target("ref"))
    programs["compiled_cpu"] = network().compile(num_threads=2)
    programs["compiled_cpu"].tuning_records[:] = [record(4), record(5)]
    migraphx.save(programs["compiled_cpu"], folder / "embedded.msgpack", embed_objects=True)
    migraphx.save(programs["compiled_cpu"], folder / "summed.msgpack")
    # Without checksums, so that changes reach what decodes a file.
    unsummed = mock.patch.object(mxr, "pack_sections", wire.pack)
    with mock.patch.object(wire, "LONGEST_BIN", LONGEST_BIN), unsummed:
        for name, program in programs.items():
            for form in ("msgpack", "json"):
                migraphx.save(program, folder / f"{name}.{form}", form)
        for seed in range(RANDOM_PROGRAMS):
            built = Builder(random.Random(seed).randint).build(12)
            form = "json" if seed % 4 == 3 else "msgpack"
            save_program(built, folder / f"random{seed}.{form}", form, {"compiled": {"target": "cpu"}})
    return sorted(folder.iterdir())
