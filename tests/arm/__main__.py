"""A part of the suite on 64-bit ARM by user-mode emulation: `python -m tests.arm [--part NAME] [--cpu NAME] [...]`.

Builds the environment of `tests.arm.environment` in the cache folder at the first call, and runs the part once for each
CPU that the emulator has. Kernels are compiled by this machine's Python for the emulated CPU, 20 times as fast; the
part ``inside`` compiles them in the emulator. Without the packages it says so and skips, with status 0; with
``--strict`` it fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from tests.caches import kept_folder

from .environment import Environment, Unavailable, build
from .plugin import INSIDE, OUTSIDE, WRAPPER

ROOT = Path(__file__).resolve().parents[2]
CPUS = {
    "neoverse-n1": "NEON with dot products (Graviton 2, Ampere Altra)",
    "neoverse-v1": "and SVE, I8MM, BF16 (Graviton 3)",
    "max": "all that the emulator has: SVE2, SME, I8MM, BF16",
}
CASTS = "tests/codegen/test_vector_convert.py::test_casts_agree_with_numpy"
MODELS = "tests/models/test_accuracy.py::test_"
RANDOM = "tests/random_models/test_random_models.py::test_seeded_models_have_the_results_of_onnxruntime"
LAST_STATUS = 5
"""Largest exit status of pytest itself (pytest.ExitCode); any other one is the emulator's."""
PARTS = {
    "ci": [
        *(f"tests/codegen/test_contraction_{name}.py" for name in ("bfloat16", "int8", "stored", "tile")),
        *(f"{CASTS}[{dtype}-native]" for dtype in ("bfloat16", "float16", "float32")),
        *(
            f"{MODELS}small_model_agrees_with_ref_and_onnxruntime[{case}]"
            for case in ("bert-False", "bert-True", "mobilenet_v2-False", "resnet50-True")
        ),
        f"{MODELS}models_in_16_bits_are_right[bert-tiny-fp16]",
        *(f"{RANDOM}[{seed}]" for seed in range(10, 200, 20)),
        "tests/runtime/test_executor.py",
    ],
    "solvers": ["-p", "tests.arm.sample", "tests/codegen"],
    "programs": ["-p", "tests.arm.sample", "tests/cpu"],
    "inside": ["tests/runtime/test_kernel_compiler.py"],
}
"""pytest's arguments of each part. `tests.arm.sample` keeps one case of each test function and solver."""


def run(environment: Environment, cpu: str, part: str, more: list[str], folder: Path) -> int:
    """Run a part on a CPU; return pytest's status."""
    settings = {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{environment.site}",
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "MGX_CACHE_DIR": str(folder / "cache"),
        "MGX_MACHINE": "generic",  # what the vendor states: rates of an emulator mean nothing
        "OPENBLAS_NUM_THREADS": "1",
        OUTSIDE: sys.executable,
        INSIDE: part if part == "inside" else "",
        WRAPPER: str(environment.wrapper(cpu, folder)),
    }
    command = [*environment.command(cpu), "-m", "pytest", "-p", "tests.arm.plugin", "-p", "no:cacheprovider", "-q"]
    return subprocess.run(
        [*command, *PARTS[part], *more], cwd=ROOT, env={**os.environ, **settings}, check=False
    ).returncode


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, default="ci")
    parser.add_argument("--cpu", choices=CPUS, action="append", help="(several times) by default each")
    parser.add_argument("--strict", action="store_true", help="fail where the environment cannot be built")
    parser.add_argument("--emulator", type=Path, help="another QEMU program for 64-bit ARM, which may have newer CPUs")
    parser.add_argument("--folder", type=Path, default=kept_folder() / "arm", help="keep the environment here")
    given, more = parser.parse_known_args(arguments)
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        environment = build(folder)
    except Unavailable as reason:
        print(f"tests.arm: skipped, no emulated environment: {reason}")
        return int(given.strict)
    if given.emulator:
        environment = replace(environment, emulator=given.emulator.resolve())
    failed, known = False, environment.cpus()
    for cpu in given.cpu or CPUS:
        if cpu not in known:
            print(f"tests.arm: {cpu} skipped, this emulator lacks it")
            continue
        begun = time.monotonic()
        print(f"\n== {cpu}: {CPUS[cpu]}", flush=True)
        status = run(environment, cpu, given.part, more, folder)
        if status not in range(LAST_STATUS + 1):  # seen once in four runs of neoverse-n1 under QEMU 7.2; cause unknown
            print(f"tests.arm: the emulator ended with status {status}; it runs once more", flush=True)
            status = run(environment, cpu, given.part, more, folder)
        print(f"tests.arm: {cpu} {'failed' if status else 'passed'} in {time.monotonic() - begun:.0f} s", flush=True)
        failed = failed or status != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
