"""Write the folder of a library: linked files, headers, weights, CMake's package file, an example."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ....codegen.cpu import host
from ....codegen.elf import data_object
from ....codegen.store import Store
from ....codegen.workers.objects import objects_of
from ....core.types import from_numpy, numpy_dtype
from ....errors import CompileError, FormatError, OptionError, UnsupportedError
from ....graph.atomic_file import replace_file
from ...library_form import LibraryForm
from ...plan import FallbackStep, Plan
from ...plan_file import constant_pieces
from . import CPP_PREFIX
from .c_source import EXECUTOR, WEIGHTS_SYMBOL, layout_text, program_text
from .cpuid import needed_bits
from .linking import Compilers, compilers, link_library
from .nodes import Node, executables_of, outputs_of, parameters_of

_MAGIC = b"mgxwgt01"
_HEAD_BYTES = 4096  # a page, so that weights in a mapped file are page-aligned
_EMBEDDED_BYTES = 1 << 30
"""Maximum size of weights inside a library: code refers to its data over at most 2 GiB."""
_NAME = re.compile("[A-Za-z][A-Za-z0-9_]*")
_MODE = 0o666  # minus the process's umask

Pieces = Sequence[bytes | memoryview]


def write_library(
    node: Node,
    folder: Path,
    name: str,
    output_names: Sequence[str],
    form: LibraryForm,
    store: Store | None = None,
) -> Path:
    """Write a library and its accompanying files under ``folder``, which is created if missing.

    These are ``lib/lib<name>.so`` and its weights, ``include``, ``lib/cmake/<name>`` and ``example/<name>``. Without a
    C compiler, or with ``link`` false, ``lib/<name>-objects`` takes the place of the library: objects, sources and a
    ``CMakeLists.txt`` that links the library on the target system. Each file is replaced atomically.

    Args:
        node: what the program runs; its plans are loaded on this machine.
        name: a C identifier: name of the library and, followed by ``_library``, of its function.
        output_names: one name for each result.
        form: what is written.
        store: object store of the kernels; None: the user's.

    Returns:
        The library, or the folder of its objects.

    Raises:
        OptionError: a bad name; too many weights to embed; other CPU features than when the program was compiled.
        UnsupportedError: plans have fallback steps, each of which is named; or the system is not Linux on x86-64.
        CompileError: a compiler is missing though ``link`` is true, or fails.
        FormatError: a file cannot be written.
    """
    tables = [executable.tables for executable in executables_of(node)]
    plans = [executable.plan for executable in executables_of(node)]
    _check(node, plans, name)
    constants: dict[int, np.ndarray] = {}
    for own, plan in zip(tables, plans):
        for address, array in zip(own.constant_addresses, plan.constants, strict=True):
            if address not in constants or constants[address].nbytes < array.nbytes:
                constants[address] = array  # a longer view of the same memory
    offsets, size, pieces = constant_pieces([*constants.values()])
    if form.embed_weights and size > _EMBEDDED_BYTES:
        raise OptionError(
            f"export_library: {size} bytes of weights cannot be inside of a library, which takes {_EMBEDDED_BYTES}; "
            "leave out embed_weights"
        )
    commands = _compilers(form)
    # Copies, since symbols are cached for the CPU features with which the process started.
    executor = {word: dataclasses.replace(kernel) for word, kernel in EXECUTOR.items()}
    sources = [*(kernel for plan in plans for kernel in plan.kernels()), *executor.values()]
    objects = objects_of(list({source.symbol: source for source in sources}.values()), store=store)
    features = needed_bits(host.features())
    digest = _digest(pieces)
    embed = form.embed_weights and size > 0
    counts, places = (len(parameters_of(node)), len(output_names)), dict(zip(constants, offsets, strict=True))
    parts: dict[str, Pieces] = {
        "layout.h": [layout_text(name, counts, executor, _MAGIC, _HEAD_BYTES).encode()],
        "plan.c": [program_text(node, output_names, places, size, digest, features, embed).encode()],
        "exports.map": [
            f"{{ global: {name}_library; mgx_get_library;{' migraphx_*;' * form.c_interface} local: *; }};\n".encode()
        ],
        **{path.name: [path.read_bytes()] for path in (CPP_PREFIX / "src").iterdir()},
        **{f"{symbol}.o": [data] for symbol, data in objects.items()},
    }
    if form.c_interface:
        parts["migraphx_c.cpp"] = [b"#include <migraphx/migraphx.cpp>\n"]
    if embed:
        parts["weights.o"] = data_object(WEIGHTS_SYMBOL, pieces, size, _HEAD_BYTES)
    try:
        return _write_all(folder, name, parts, commands, None if embed or not size else [_head(digest), *pieces])
    except OSError as error:
        raise FormatError(f"{error.filename or folder}: cannot be written: {error.strerror or error}") from None


def _compilers(form: LibraryForm) -> Compilers | None:
    """Return the compilers of a library; None if objects are written instead."""
    try:
        return None if form.link is False else compilers("export_library", "CC", *["CXX"] * form.c_interface)
    except CompileError:
        if form.link:
            raise
        return None


def _check(node: Node, plans: Sequence[Plan], name: str) -> None:
    if not _NAME.fullmatch(name):
        raise OptionError(f"export_library: the name {name!r} is no identifier: a letter, then letters, digits and _")
    if name == "mgx_numba":
        raise OptionError(f"export_library: the name {name} is that of a header which every library has")
    if host.triple().split("-")[0] != "x86_64" or not sys.platform.startswith("linux"):
        raise UnsupportedError("export_library: libraries are written for Linux on x86-64 alone")
    fallbacks = [step for plan in plans for step in plan.steps if isinstance(step, FallbackStep)]
    if fallbacks:
        texts = [f"  {step.instruction or step.label}: {step.reason or 'no kernel does it'}" for step in fallbacks]
        listed = list(dict.fromkeys(texts))  # plans for other lengths have the same steps
        raise UnsupportedError(
            f"export_library: steps of the program run in Python, which a library has not: {len(listed)}\n"
            + "\n".join(listed)
        )
    tensors = [(f"parameter {p}", dtype) for p, (dtype, _) in parameters_of(node).items()]
    for what, dtype in [*tensors, *(("a result", dtype) for dtype, _ in outputs_of(node))]:
        kind = from_numpy(numpy_dtype(dtype))
        if kind.hosted:
            raise UnsupportedError(f"export_library: {what} is of {kind.name}, for which libraries have no type")
    for kernel in dict.fromkeys(kernel for plan in plans for kernel in plan.kernels()):
        if dataclasses.replace(kernel).symbol != kernel.symbol:
            raise OptionError(
                f"export_library: the program was compiled for other CPU features than {host.ENVIRONMENT} allows now; "
                "compile it again"
            )


def _write_all(
    folder: Path, name: str, parts: dict[str, Pieces], commands: Compilers | None, weights: Pieces | None
) -> Path:
    include, libraries = folder / "include", folder / "lib"
    library, unlinked, beside = (
        libraries / f"lib{name}.so",
        libraries / f"{name}-objects",
        libraries / f"{name}.weights",
    )
    _instantiate("include/mgx_numba.h", include / "mgx_numba.h", name)
    for header in sorted((CPP_PREFIX / "include").glob("migraphx/**/*.*")):
        place = header.relative_to(CPP_PREFIX)
        _instantiate(str(place), folder / place, name)
    _instantiate("include/NAME.h", include / f"{name}.h", name)
    _instantiate("cmake/NAMEConfig.cmake", libraries / "cmake" / name / f"{name}Config.cmake", name)
    for file in ("CMakeLists.txt", "example.c", "example.cpp"):
        _instantiate(f"example/{file}", folder / "example" / name / file, name)
    linked = None
    if commands is not None:
        with tempfile.TemporaryDirectory(prefix="mgx_numba_") as temporary:
            for part, pieces in parts.items():
                _write(Path(temporary, part), pieces)
            linked = link_library(commands, Path(temporary), include.resolve(), name).read_bytes()
    if weights is not None:
        _write(beside, weights)
    else:
        _remove(beside)
    shutil.rmtree(unlinked, ignore_errors=True)
    if linked is not None:
        _write(library, [linked], _MODE | 0o111)
        return library
    _remove(library)
    for part, pieces in parts.items():
        _write(unlinked / part, pieces)
    _instantiate("cmake/CMakeLists.txt", unlinked / "CMakeLists.txt", name)
    return unlinked


def _instantiate(template: str, path: Path, name: str) -> None:
    _write(path, [(CPP_PREFIX / template).read_text().replace("@NAME@", name).encode()])


def _write(path: Path, pieces: Pieces, mode: int = _MODE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda write: [write(piece) for piece in pieces], mode)


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _digest(pieces: Pieces) -> bytes:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.digest()


def _head(digest: bytes) -> bytes:
    return (_MAGIC + digest).ljust(_HEAD_BYTES, b"\0")
