"""Compile a model, time it, and report the time of each instruction, each kernel and the whole program."""

from __future__ import annotations

import argparse

from ...errors import OptionError
from ...targets.registry import target
from ..arguments import add_compile, add_inputs, add_iterations, add_loader, checked_repeats
from ..batches import batch_of, check_plot, machine_line, measure_batches, parse_sizes, plot_batches, write_batches
from ..compiling import compile_model
from ..feeding import make_inputs
from ..language import add_cache_type, load_language_model, measure_language_model, write_rates
from ..loading import file_type, load_model, title_of
from ..measure import measure
from ..page.data import page_data
from ..page.writing import read_page, write_json, write_page
from ..report import write_report
from ..timeline import record_runs, write_trace_events
from ..writing import check_writable

LLM_REPEATS = 5  # as llama-bench
TRACED_RUNS = 5
"""Number of runs that `--trace` records: enough to see variation between runs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    add_loader(parser, several_batches=True)
    add_compile(parser)
    add_inputs(parser)
    add_iterations(parser, 100)
    parser.add_argument("-d", "--detailed", action="store_true", help="summarise by kernel and sizes")
    parser.add_argument("--batch-sizes", metavar="N,N,...", help="compare the throughput of batch sizes instead")
    parser.add_argument("--plot", metavar="FILE", help="with --batch-sizes: draw it into a PNG file")
    parser.add_argument("--html", metavar="FILE", help="write a page with roofline, graph, sources, times and memory")
    parser.add_argument(
        "--json", metavar="FILE", help="write all that was measured as JSON: times in seconds, sizes in bytes"
    )
    parser.add_argument("--compare", metavar="FILE", help="with --html: an earlier page to compare with")
    group = parser.add_argument_group("language models")
    group.add_argument("--llm", action="store_true", help="the model is a language model: measure tokens per second")
    group.add_argument("--prompt", type=int, metavar="N", help="with --llm: tokens of a prompt (default 512)")
    group.add_argument("--tokens", type=int, metavar="N", help="with --llm: tokens to generate (default 128)")
    add_cache_type(group)
    parser.add_argument("--trace", metavar="FILE", help="write what each thread does in some runs, for Perfetto")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    repeats = checked_repeats(args)
    if args.llm:
        return _run_language_model(args)
    if args.prompt is not None or args.tokens is not None:
        raise OptionError("--prompt and --tokens need --llm")
    if isinstance(args.batch, list):
        raise OptionError("--batch takes one length; --batch-sizes compares several")
    if args.batch_sizes is not None:
        sizes = parse_sizes(args.batch_sizes)
        if args.plot:
            check_plot(args.plot)
        times = measure_batches(args, sizes, repeats)
        write_batches(times)
        if args.plot:
            plot_batches(times, args.plot, title_of(args), machine_line(args))
        return 0
    if args.plot:
        raise OptionError("--plot needs --batch-sizes")
    if args.compare and not args.html:
        raise OptionError("--compare needs --html FILE: the comparison is a part of the page")
    for path in filter(None, (args.trace, args.html, args.json)):
        check_writable(path)
    other = read_page(args.compare) if args.compare else None
    args.debug_symbols |= bool(args.html) and file_type(args) == "onnx"  # the page links nodes to kernels
    model = load_model(args)
    inputs = make_inputs(model, args)
    compile_model(model, args)
    measured = measure(model, inputs, repeats)
    batch = batch_of(model, inputs, args.batch or 0)
    write_report(measured, batch, args.detailed)
    if args.html or args.json:
        data = page_data(model, measured, batch, title_of(args))
        if args.html:
            write_page(args.html, data, other)
        if args.json:
            write_json(args.json, data)
    if args.trace:
        write_trace_events(args.trace, record_runs(model, inputs, min(repeats.iterations, TRACED_RUNS)), title_of(args))
    return 0


def _run_language_model(args: argparse.Namespace) -> int:
    """Print the rates of a language model for the flags ``--prompt``, ``--tokens`` and ``--batch``."""
    if args.file is None:
        raise OptionError("perf --llm needs a model: a folder of onnxruntime-genai or of transformers, or a GGUF file")
    batches = args.batch if isinstance(args.batch, list) else [args.batch or 1]
    args.model = args.file
    args.num_threads = args.num_threads or 0
    model = load_language_model(args)
    prompt, tokens = (default if n is None else n for n, default in ((args.prompt, 512), (args.tokens, 128)))
    rates = measure_language_model(model, prompt, tokens, batches, LLM_REPEATS)
    limits = target(model.target).limits(args.num_threads)
    write_rates(model, rates, limits.gbytes * 1e9 if limits else None)
    return 0
