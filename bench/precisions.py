"""Whole models in lower precision against the peers, engines in turn in one process with equal threads.

    python -m bench.precisions --models bert,unet --json FOLDER       # a file for each model as soon as it is done
    python -m bench.precisions --models bert,unet --folder F --files  # only write the model files, which F keeps

Kinds of runs: ``float32`` of every engine; ``bf16``: our `quantize_bf16`, and OpenVINO with its own choice of
precision; ``int8``: our `quantize_int8`; ``file``: every engine on the QDQ file of ONNX Runtime's quantiser.
An error is that of `bench.agreement` from ONNX Runtime's float32, the mean over several inputs: the largest difference
for one input varies by a half between inputs. Failures of an engine are recorded, and the others are measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bench.agreement import agreement, choices_of
from bench.cases import Case, case_names, kept
from bench.environment import describe
from bench.models import inputs
from bench.peers import OURS, Session, installed, open_session
from bench.steps import step_times
from bench.timing import interleave

__all__ = ["KINDS", "measure", "qdq_file"]

KINDS = ("float32", "bf16", "int8", "file")
MODELS = ("bert", "efficientnet_b0", "mobilenet_v2", "resnet50", "unet", "vit")
REFERENCE = "onnxruntime"


class _Batches:
    """One batch, in the form that ONNX Runtime's quantiser reads."""

    def __init__(self, feeds: dict[str, np.ndarray]) -> None:
        self.left = [feeds]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


def qdq_file(case: Case, folder: Path) -> Path:
    """Return the path of the model in 8 bits by ONNX Runtime's quantiser; reuse an existing file in the folder.

    The quantiser's pre-processing fuses normalisations into convolutions. Weights are int8 per channel, activations
    uint8.
    """
    ready, path = (folder / f"{case.name}.{kind}.onnx" for kind in ("ready", "qdq"))
    if path.exists():
        return path
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    part = folder / f"{case.name}.part.onnx"
    quant_pre_process(str(case.checked), str(ready), skip_symbolic_shape=True)
    quantize_static(
        ready, part, _Batches(case.feeds), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    return part.rename(path)


def _quantized(case: Case, threads: int, kind: str) -> Session:
    """Return our session of the quantised float32 model."""
    import mgx_numba

    program = mgx_numba.parse_onnx(str(case.checked))
    if kind == "int8":
        mgx_numba.quantize_int8(program, mgx_numba.get_target("cpu"), [case.feeds])
    else:
        mgx_numba.quantize_bf16(program)
    program.compile("cpu", num_threads=threads)
    return Session(OURS, kind, {}, lambda given=case.feeds: program.run(given), program)


def _open(case: Case, folder: Path, threads: int, engine: str, kind: str) -> Session:
    if engine == OURS and kind in ("bf16", "int8"):
        return _quantized(case, threads, kind)
    path = qdq_file(case, folder) if kind == "file" else case.checked
    return open_session(engine, path, case.feeds, threads, own=kind != "float32")


def _wanted(kinds: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield engine and kind of each run; the reference first."""
    engines = [REFERENCE, *(engine for engine in installed() if engine != REFERENCE)]
    for kind in ("float32", *(kind for kind in kinds if kind != "float32")):
        for engine in engines:
            runs = {"bf16": engine != REFERENCE, "int8": engine == OURS}.get(kind, True)
            if runs and (kind in kinds or engine == REFERENCE):
                yield engine, kind


def measure(
    case: Case, folder: Path, threads: int, budget: float, kinds: Sequence[str] = KINDS, draws: int = 1
) -> dict[str, Any]:
    """Return times and errors of all runs of a model, by ``"ENGINE KIND"``, and the steps of ours.

    Errors are means over ``draws`` inputs, including the case's own.

    The result has ``engines`` (milliseconds as `Timing.summary`, and ``error``), ``failures`` (messages) and ``steps``
    (by kind, as `StepTime.record`), ready for JSON.
    """
    sessions: dict[str, Session] = {}
    failures: dict[str, str] = {}
    errors: dict[str, float] = {}
    exact: list[list[np.ndarray]] = []
    model = onnx.load(case.checked)
    choices = choices_of(model)
    base = case.name.partition("@")[0]
    given = [case.feeds, *(inputs(base, model, seed) for seed in range(1, draws))]
    for engine, kind in _wanted(kinds):
        name = f"{engine} {kind}"
        try:
            session = _open(case, folder, threads, engine, kind)
            results = [[np.array(r) for r in session.run(feeds)] for feeds in given]
        except Exception as problem:  # engines raise any exception
            failures[name] = f"{type(problem).__name__}: {problem}"[:500]
            continue
        exact = exact or results
        found = [agreement(*pair, choices) for pair in zip(results, exact)]
        sessions[name] = session
        errors[name] = statistics.fmean(float("inf") if one.problem else one.error for one in found)
    timings = interleave({name: session.run for name, session in sessions.items()}, budget)
    steps = {}
    for name, session in sessions.items():
        if session.engine == OURS:
            kind = name.partition(" ")[2]
            steps[kind] = [step.record() for step in step_times(case.name, session.handle, case.feeds)]
    engines = {name: {**timing.summary(), "error": errors[name]} for name, timing in timings.items()}
    return {"model": case.name, "threads": threads, "engines": engines, "failures": failures, "steps": steps}


def _line(record: dict[str, Any]) -> str:
    parts = [
        f"{name} {found['median_ms']:.2f} ms, error {found['error']:.1e}" for name, found in record["engines"].items()
    ]
    parts += [f"{name} failed: {message[:120]}" for name, message in record["failures"].items()]
    return f"{record['model']}: " + "; ".join(parts)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=_names, default=list(MODELS), help="names of bench.cases")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=6.0, help="seconds of timing for each model")
    parser.add_argument("--inputs", type=int, default=6, help="inputs whose mean error is told")
    parser.add_argument("--kinds", type=_names, default=list(KINDS), help=f"some of {','.join(KINDS)}")
    parser.add_argument("--folder", type=Path, help="where model files are kept, and taken from")
    parser.add_argument("--files", action="store_true", help="only write the files")
    parser.add_argument("--json", type=Path, help="folder for a file of each model")
    given = parser.parse_args()
    if given.inputs < 1:
        parser.error(f"--inputs: {given.inputs}, expected at least 1")
    for what, names, known in (("models", given.models, case_names()), ("kinds", given.kinds, KINDS)):
        if not set(names) <= set(known):
            parser.error(f"--{what}: unknown {', '.join(sorted(set(names) - set(known)))}")
    with tempfile.TemporaryDirectory() as folder:
        place = given.folder or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        for name in given.models:
            case = kept(name, place)
            if given.files:
                if "file" in given.kinds:
                    qdq_file(case, place)
                continue
            record = measure(case, place, given.threads, given.budget, given.kinds, given.inputs)
            print(_line(record), flush=True)
            if given.json:
                record["environment"] = describe()
                given.json.mkdir(parents=True, exist_ok=True)
                (given.json / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
