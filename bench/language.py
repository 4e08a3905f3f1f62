"""Tokens per second of a language model, beside llama.cpp and OpenVINO GenAI (GGUF files) or onnxruntime-genai (its
folders).

    python -m bench.language MODEL [--threads N] [--prompt N] [--tokens N] [--rounds N] [--json FILE]

All engines get the same file, threads and random prompt, and choose greedily. They take turns, after a pause each.
Printed are medians over rounds: tokens of the prompt per second (pp), from the call to the first token, and generated
tokens per second (tg). The peers are packages of their own: ``llama-cpp-python``, ``openvino-genai``,
``onnxruntime-genai``. OpenVINO GenAI reads GGUF files of Llama's and Qwen's architectures, not of Gemma's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import mgx_numba.llm as own

Rates = tuple[float, float]
PAUSE = 1.0
"""Seconds of rest before each measurement, in which the threads of the other engine go to sleep."""
WARM = 64, 8
"""Tokens of the prompt, and generated tokens, of an untimed run."""


def _generator(library: Any, model: Any, prompt: Sequence[int], tokens: int) -> Rates:
    """Measure a library with onnxruntime-genai's classes."""
    options = library.GeneratorParams(model)
    options.set_search_options(
        max_length=len(prompt) + tokens + 1, min_length=len(prompt) + tokens + 1, do_sample=False
    )
    generator = library.Generator(model, options)
    begin = time.perf_counter()
    generator.append_tokens(np.array(prompt, np.int32))
    generator.generate_next_token()
    first = time.perf_counter()
    for _ in range(tokens):
        generator.generate_next_token()
    return len(prompt) / (first - begin), tokens / (time.perf_counter() - first)


def _llama(model: Any, prompt: Sequence[int], tokens: int) -> Rates:
    """Measure llama.cpp."""
    model.reset()
    begin = time.perf_counter()
    model.eval(list(prompt))
    token = model.sample(temp=0.0)
    first = time.perf_counter()
    for _ in range(tokens):
        model.eval([token])
        token = model.sample(temp=0.0)
    return len(prompt) / (first - begin), tokens / (time.perf_counter() - first)


def _openvino(pipeline: Any, prompt: Sequence[int], tokens: int) -> Rates:
    """Measure OpenVINO GenAI by its own times, from the call to the first token and between later ones."""
    import openvino
    import openvino_genai

    ids = np.array([prompt], np.int64)
    given = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
    config = openvino_genai.GenerationConfig(max_new_tokens=tokens + 1, ignore_eos=True, do_sample=False)
    times = pipeline.generate(given, config).perf_metrics
    return len(prompt) / (times.get_ttft().mean / 1e3), 1e3 / times.get_tpot().mean


def _openvino_pipeline(path: Path, threads: int) -> Any:
    """Return the peer's pipeline; None, with the reason on stderr, if it cannot load the file."""
    try:
        import openvino_genai

        # its other attention keeps the prompt of the round before
        return openvino_genai.LLMPipeline(str(path), "CPU", ATTENTION_BACKEND="SDPA", INFERENCE_NUM_THREADS=threads)
    except (ImportError, RuntimeError) as error:
        print(f"without OpenVINO GenAI: {' '.join(str(error).split())[-200:]}", file=sys.stderr)
        return None


def engines(path: Path, threads: int, context: int) -> dict[str, Callable[[Sequence[int], int], Rates]]:
    """Return the measuring functions of ours and, if it is installed, of the peer."""
    mine = own.Model(str(path), num_threads=threads)
    found: dict[str, Callable[[Sequence[int], int], Rates]] = {"ours": lambda p, n: _generator(own, mine, p, n)}
    try:
        if path.is_file():
            import llama_cpp

            made = llama_cpp.Llama(str(path), n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False)
            found["llama.cpp"] = lambda p, n: _llama(made, p, n)
        else:
            import onnxruntime_genai

            config = onnxruntime_genai.Config(str(path))
            options = {"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}
            config.overlay(json.dumps(options))
            theirs = onnxruntime_genai.Model(config)
            found["onnxruntime-genai"] = lambda p, n: _generator(onnxruntime_genai, theirs, p, n)
    except ImportError as error:
        print(f"{error.name} is not installed: ours without it", file=sys.stderr)
    pipeline = _openvino_pipeline(path, threads) if path.is_file() else None
    if pipeline is not None:
        found["OpenVINO GenAI"] = lambda p, n: _openvino(pipeline, p, n)
    return found


def main() -> int:
    """Measure a model and print its rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file, or folder of onnxruntime-genai")
    parser.add_argument("--threads", type=int, default=2, help="threads of each engine")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to generate")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each engine")
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    prompt = np.random.default_rng(0).integers(100, 1000, given.prompt).tolist()
    measured = engines(given.model, given.threads, given.prompt + given.tokens + 8)
    for measure in measured.values():
        measure(prompt[: WARM[0]], WARM[1])
    rates: dict[str, list[Rates]] = {name: [] for name in measured}
    for _ in range(given.rounds):
        for name, measure in measured.items():
            time.sleep(PAUSE)
            rates[name].append(measure(prompt, given.tokens))
    medians = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in rates.items()}
    print(f"{'':18} {'pp' + str(given.prompt):>10} {'tg' + str(given.tokens):>10}  tokens per second")
    for name, (prefill, decode) in medians.items():
        print(f"{name:18} {prefill:10.1f} {decode:10.1f}")
    if given.json:
        given.json.write_text(json.dumps(medians))
    return 0


if __name__ == "__main__":
    sys.exit(main())
