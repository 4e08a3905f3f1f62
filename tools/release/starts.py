"""Starts of networks with an installed wheel and an empty cache folder: the kernels that had to be compiled."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import onnx

from bench.light import randomize
from bench.models import MODELS, build, light_models

__all__ = ["starts"]

NETWORKS = ("light_squeezenet", "bert", "gpt2", "resnet50", "mobilenet_v2", "yolo")
"""Networks of the corpus, of each usual kind."""
START = """
import sys
import mgx_numba

program = mgx_numba.parse_onnx(sys.argv[1])
program.compile("cpu")
program.run({name: mgx_numba.fill_argument(shape, 0) for name, shape in program.get_parameter_shapes().items()})
"""
_SHOWN = 5  # names of kernels in a line


def starts(python: str, folder: Path, networks: tuple[str, ...] = NETWORKS) -> list[str]:
    """Return a line for each network: how many kernels its first run compiled, and which.

    Args:
        python: interpreter of the environment in which the wheel is installed.
        folder: a folder for models and caches.
        networks: names of the benchmark's models and of the onnx package's light models.

    Raises:
        ValueError: a network does not run.
    """
    lines = []
    for name in networks:
        model, cache = folder / f"{name}.onnx", folder / f"cache-{name}"
        onnx.save(build(name) if name in MODELS else randomize(onnx.load(light_models()[name])), model)
        done = subprocess.run(
            [python, "-I", "-c", START, str(model)],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "MGX_CACHE_DIR": str(cache)},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ValueError(f"{name}: {done.stderr[-2000:]}")
        # shipped kernels are not stored again
        compiled = Counter(json.loads(path.read_text())["name"] for path in cache.glob("objects/*.json"))
        shown = ", ".join(list(compiled)[:_SHOWN]) + (", ..." if len(compiled) > _SHOWN else "")
        lines.append(f"{name}: kernels compiled at the first start: {compiled.total()}{shown and f' ({shown})'}")
    return lines
