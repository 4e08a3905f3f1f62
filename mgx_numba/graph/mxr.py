"""``.mxr`` files: a program in its portable form, its weights, and how it was compiled and tuned.

The structure is MIGraphX's (``program::to_value``, file version 8), as msgpack or JSON: ``version``,
``migraphx_version``, ``targets``, ``contexts`` and ``modules``. A further map ``mgx_numba`` holds everything that
MIGraphX has no place for; its key ``format`` is the version of that map. Opening a file runs nothing from it, and
weights are views of the bytes that were read. A msgpack file may end with machine code (``mgx_numba_objects``), which
is skipped unless the caller requests it, and with a library for C++ only (``mgx_numba_library``). Its sections have
checksums (`checksums`), which are compared when a section is read. JSON, which people edit, has none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .._version import __version__
from ..core.argument import Argument
from ..errors import FormatError, MgxError, OptionError
from ..interrupts import whole_module
from .atomic_file import replace_file
from .checksums import CHECKSUMS, check_sections, pack_sections
from .content import FilePath, read_bytes
from .instruction import Instruction, Literal, Outline, Parameter, Results, Return
from .machine_code import LIBRARY, OBJECTS
from .module import Module
from .origin import Origin
from .program import Program
from .serialize import (
    argument_from_value,
    argument_to_value,
    operator_from_value,
    program_modules,
    shape_from_value,
    strings,
)
from .wire import Decoder, Write, pack, pack_json, unpack_json

__all__ = [
    "OBJECTS",
    "load_argument",
    "load_buffer",
    "load_content",
    "load_program",
    "save_argument",
    "save_buffer",
    "save_program",
]

FILE_VERSION = 8  # MIGraphX's file version, for the release below
MIGRAPHX_VERSION = "2.16.0"
FORMAT = 1  # version of the map `mgx_numba`; raised with each incompatible change


def save_program(
    program: Program,
    path: FilePath,
    format: str = "msgpack",
    extra: Mapping[str, object] | None = None,
    objects: object = None,
    library: object = None,
) -> None:
    """Write a program to a file; the file is replaced atomically.

    Args:
        format: ``msgpack`` or ``json``.
        extra: data to save with the program, a value tree; its ``tuning`` is the list of tuning records.
        objects: machine code, a value tree; None for none.
        library: the program as a shared library, a value tree; None for none.

    Raises:
        OptionError: another format, or machine code in JSON.
        FormatError: the file cannot be written.
    """
    writer = _writer(format)
    tree = _tree(program, extra or {}, format, {OBJECTS: objects, LIBRARY: library})
    _replace(path, lambda write: writer(tree, write))


def load_program(
    path: FilePath, format: str = "msgpack", with_objects: bool = False
) -> tuple[Program, dict[str, object]]:
    """Return the program in a file and the extra data saved with it (``tuning`` is always present).

    Literals of a msgpack file are views of its content, which is read into memory as a whole; the file may change
    afterwards. `load_buffer` of a mapped file takes no memory, but then the file must not change. ``with_objects`` adds
    the file's machine code under the key `OBJECTS`, if it has any.

    Raises:
        OptionError: a format other than ``msgpack`` and ``json``.
        FormatError: the file cannot be read, is malformed, or of another version; the message says where.
    """
    _writer(format)
    return load_content(read_bytes(path), path, format, with_objects)


def load_content(
    data: memoryview, path: FilePath, format: str = "msgpack", with_objects: bool = False
) -> tuple[Program, dict[str, object]]:
    """Return the program in ``data``, the content of ``path``, as `load_program` does."""
    try:
        return _load(data, with_objects) if format == "msgpack" else _load_json(data)
    except FormatError as error:
        raise FormatError(f"{os.fspath(path)}: {error}") from error.__cause__


def save_buffer(
    program: Program,
    extra: Mapping[str, object] | None = None,
    format: str = "msgpack",
    objects: object = None,
    library: object = None,
) -> bytes:
    """Return the bytes that `save_program` would write.

    Raises:
        OptionError: unknown format, or machine code in JSON.
    """
    pieces: list[Any] = []
    _writer(format)(_tree(program, extra or {}, format, {OBJECTS: objects, LIBRARY: library}), pieces.append)
    return b"".join(pieces)


def load_buffer(data: bytes | bytearray | memoryview, with_objects: bool = False) -> tuple[Program, dict[str, object]]:
    """Return the program in the bytes of a msgpack file, as `load_program` does; literals are views of the bytes.

    Raises:
        FormatError: the bytes are malformed, or of another version.
    """
    return _load(memoryview(data).toreadonly().cast("B"), with_objects)


def save_argument(argument: Argument, path: FilePath) -> None:
    """Write a tensor (msgpack); the file is replaced atomically."""
    tree = argument_to_value(argument)
    _replace(path, lambda write: pack(tree, write))


def load_argument(path: FilePath) -> Argument:
    """Return the tensor that `save_argument` wrote, in memory of its own.

    Raises:
        FormatError: the file cannot be read or is malformed.
    """
    data = read_bytes(path)
    try:
        decoder = Decoder(data)
        decoder.skip()
        decoder.end_tree()
        found = argument_from_value(decoder.at(0).value())
        _expect_end(decoder)
    except ValueError as error:
        raise FormatError(f"{os.fspath(path)}: {error}") from None
    return _owned(found)


def _owned(argument: Argument) -> Argument:
    if argument.array is None:
        return Argument.from_tuple([_owned(member) for member in argument.sub])
    copy = Argument.from_shape(argument.shape)
    copy.numpy()[...] = argument.numpy()
    return copy


def _writer(format: str) -> Callable[[object, Write], object]:
    found = {"msgpack": pack_sections, "json": pack_json}.get(format)
    if found is None:
        raise OptionError(f"Unknown format: {format}; known: msgpack, json")
    return found  # type: ignore[return-value]


def _tree(program: Program, extra: Mapping[str, object], format: str, code: Mapping[str, object]) -> dict[str, object]:
    given = {key: tree for key, tree in code.items() if tree is not None}
    if given and format != "msgpack":
        raise OptionError(f"machine code can be kept in msgpack files only, not in {format}")
    own = {"format": FORMAT, "version": __version__, "tuning": [], **extra}
    if program.open_dims:
        own["open_dims"] = {name: list(map(list, axes.items())) for name, axes in program.open_dims.items()}
    origin = program.origin.to_json()
    if origin:
        own["origin"] = origin
    return {
        "version": FILE_VERSION,
        "migraphx_version": MIGRAPHX_VERSION,
        "mgx_numba": own,
        "targets": [],
        "contexts": [],
        "modules": program_modules(program),
        **given,
    }


def _load(data: memoryview, with_objects: bool) -> tuple[Program, dict[str, object]]:
    decoder = Decoder(data)
    header: dict[str, object] = {}
    modules: dict[str, Nodes] = {}
    objects: int | None = None
    checksums: object = ()
    for key in decoder.entries("the file"):
        if key == "modules":
            for name in decoder.entries("'modules'"):
                modules[name] = _index_module(decoder, name)
        elif key in ("version", "migraphx_version", "mgx_numba"):
            header[key] = decoder.value()
            if key == "version":
                _check_version(header)
        elif key == CHECKSUMS:
            checksums = decoder.value()
        else:
            objects = decoder.position if key == OBJECTS else objects
            decoder.skip()
    decoder.end_tree()
    check_sections(data, checksums, (LIBRARY,) if with_objects else (LIBRARY, OBJECTS))
    program, extra = _finish(header, modules)
    if objects is not None and with_objects:
        extra[OBJECTS] = decoder.at(objects).value()
    _expect_end(decoder)
    return program, extra


def _load_json(data: memoryview) -> tuple[Program, dict[str, object]]:
    root = unpack_json(data)
    if not isinstance(root, dict):
        raise FormatError("the file must be an object")
    _check_version(root)
    found = root.get("modules")
    if not isinstance(found, dict):
        raise FormatError("'modules' must be an object")
    modules: dict[str, Nodes] = {}
    for name, module in found.items():
        nodes = module.get("nodes") if isinstance(module, dict) else None
        if not isinstance(nodes, list):
            raise FormatError(f"module {name!r} must be an object with an array 'nodes'")
        modules[name] = nodes.__iter__
    return _finish(root, modules)


def _finish(header: Mapping[str, object], modules: Mapping[str, Nodes]) -> tuple[Program, dict[str, object]]:
    _check_version(header)
    extra = _check_extra(header.get("mgx_numba", {}))
    open_dims = _check_open_dims(extra.pop("open_dims", {}))
    origin = Origin.from_json(extra.pop("origin", {}))
    try:
        if "main" not in modules:
            raise FormatError("modules: there is no module 'main'")
        program = _Rebuild(modules).run()
    except RecursionError:
        raise FormatError("values or modules are nested too deeply") from None
    program.open_dims, program.origin = open_dims, origin
    return program, extra


def _index_module(decoder: Decoder, name: str) -> Nodes:
    """Return the position of a module's nodes, which are decoded when the module is built; ``decoder`` is at the
    module."""
    start: int | None = None
    for key in decoder.entries(f"module {name!r}"):
        if key == "nodes":
            start = decoder.position
        decoder.skip()
    if start is None:
        raise decoder.fail(f"module {name!r} has no 'nodes'")

    def nodes(position: int = start) -> Iterator[object]:
        reader = decoder.at(position)
        for number in range(reader.array(f"'nodes' of module {name!r}")):
            try:
                yield reader.value()
            except FormatError as error:
                raise FormatError(f"module {name!r}, node {number}: {error}") from None

    return nodes


def _check_version(header: Mapping[str, object]) -> None:
    found = header.get("version")
    if found != FILE_VERSION or isinstance(found, bool):
        raise FormatError(f"file version is {str(found)[:40]}, expected {FILE_VERSION}")


def _check_extra(own: object) -> dict[str, object]:
    if not isinstance(own, dict):
        raise FormatError("'mgx_numba' must be a map")
    found = own.get("format", FORMAT)
    if found != FORMAT or isinstance(found, bool):
        raise FormatError(f"mgx_numba: format is {str(found)[:40]}, expected {FORMAT}")
    extra = {"tuning": [], **{k: v for k, v in own.items() if k not in ("format", "version", OBJECTS)}}
    if not isinstance(extra["tuning"], list):
        raise FormatError("mgx_numba: 'tuning' must be an array")
    return extra


def _check_open_dims(found: object) -> dict[str, dict[int, str]]:
    """Return `Program.open_dims` from its saved form: per input, pairs of axis and symbol."""
    if not isinstance(found, dict) or not all(isinstance(pairs, list) for pairs in found.values()):
        raise FormatError("mgx_numba: 'open_dims' must be a map of arrays")
    for name, pairs in found.items():
        for pair in pairs:
            if not isinstance(pair, list) or [type(entry) for entry in pair] != [int, str] or pair[0] < 0:
                raise FormatError(f"mgx_numba: 'open_dims' of {name!r} must be pairs of axis and symbol")
    return {name: dict(pairs) for name, pairs in found.items()}


def _expect_end(decoder: Decoder) -> None:
    if not decoder.finished:
        raise decoder.fail("more data follow the end")


def _replace(path: FilePath, fill: Callable[[Write], object]) -> None:
    try:
        replace_file(path, fill, mode=0o666, durable=True)
    except OSError as error:
        raise FormatError(f"{os.fspath(path)}: cannot be written: {error.strerror or error}") from error


MAX_NESTING = 64  # far above real control flow, and below Python's recursion limit

Nodes = Callable[[], Iterator[object]]


class _Rebuild:
    def __init__(self, modules: Mapping[str, Nodes]) -> None:
        whole_module("mgx_numba.ops")  # registers the operators
        self._nodes = modules
        self._program = Program()
        self._values: dict[str, Instruction] = {}
        self._done: dict[str, set[Instruction]] = {}
        self._open: list[Module] = []
        self._admitted: set[tuple[Module, str]] = set()
        self._parameters: dict[str, tuple[set[str], set[int]]] = {}

    def run(self) -> Program:
        for name in self._nodes:
            if name != "main":
                self._program.create_module(name)
        self._build("main")
        for name in self._nodes:
            if name not in self._done:
                self._open = [self._program.main]
                self._build(name)
        return self._program

    def _build(self, name: str) -> None:
        """Build the module of this name; the modules in ``_open`` enclose it."""
        module = self._program.module(name)
        if module is None:
            raise FormatError(f"there is no module {name!r}")
        if len(self._open) >= MAX_NESTING:
            raise FormatError(f"modules are nested more than {MAX_NESTING} levels deep")
        self._open.append(module)
        captured: set[Instruction] = set()
        for position, node in enumerate(self._nodes[name]()):
            what = node.get("name") if isinstance(node, dict) else None
            try:
                if module.return_instruction is not None:
                    raise FormatError("it follows the module's @return")
                self._add(module, node, captured)
            except (MgxError, ValueError) as error:
                place = f"module {name!r}, node {position} ({what if isinstance(what, str) else '?'})"
                raise FormatError(f"{place}: {error}") from None
            except (ArithmeticError, LookupError, TypeError, AttributeError, NotImplementedError) as error:
                # Damaged files may give shape rules attributes that no parser gives.
                place = f"module {name!r}, node {position} ({what})"
                raise FormatError(f"{place}: {type(error).__name__}: {error}") from error
        module._parameters = 1 + max(self._parameters.get(name, (set(), {-1}))[1])
        self._open.pop()
        self._done[name] = captured

    def _add(self, module: Module, node: object, captured: set[Instruction]) -> None:
        if not isinstance(node, dict):
            raise FormatError("a node must be a map")
        output, name = node.get("output"), node.get("name")
        if not isinstance(output, str) or not isinstance(name, str):
            raise FormatError("'output' and 'name' must be strings")
        if output in self._values:
            raise FormatError(f"output {output!r} is taken")
        inputs = [self._input(module, i, captured) for i in strings(node.get("inputs", []), "inputs")]
        run = strings(node.get("module_inputs", []), "module_inputs")
        bodies = [self._body(module, body, captured) for body in run]
        ins = self._instruction(module, name, node, inputs, bodies)
        ins.normalized = bool(node.get("normalized", False))
        ins.debug_symbols = tuple(strings(node.get("debug_symbols", []), "debug_symbols"))
        target = node.get("target_id", 0)
        if not isinstance(target, int) or target < 0:
            raise FormatError(f"target_id is {target!r}, expected an integer that is not negative")
        ins.target_id = int(target)
        self._values[output] = module._link(ins, None)

    def _input(self, module: Module, name: str, captured: set[Instruction]) -> Instruction:
        found = self._values.get(name)
        if found is None:
            raise FormatError(f"input {name!r} is not the output of an earlier node")
        self._capture(module, found, captured)
        return found

    def _capture(self, module: Module, value: Instruction, captured: set[Instruction]) -> None:
        if value.module is module:
            return
        if value.module not in self._open:
            raise FormatError("it uses a value of a module that does not enclose this one")
        captured.add(value)

    def _body(self, module: Module, name: str, captured: set[Instruction]) -> Module:
        body = self._program.module(name)
        if body is None or body is self._program.main:
            raise FormatError(f"module_inputs names {name!r}, which is no submodule")
        if body in self._open:
            raise FormatError(f"module {name!r} runs itself")
        if name not in self._done:
            self._build(name)
        if (module, name) not in self._admitted:
            self._admitted.add((module, name))
            for value in self._done[name]:
                self._capture(module, value, captured)
        return body

    def _instruction(
        self, module: Module, name: str, node: dict[str, object], inputs: list[Instruction], bodies: list[Module]
    ) -> Instruction:
        attributes = node.get("operator", {})
        if name == Return.name:
            return Results(inputs)
        if name in (Literal.name, Parameter.name, Outline.name):
            if inputs or bodies:
                raise FormatError(f"{name} has inputs")
            if name == Literal.name:
                literal: Argument = argument_from_value(node.get("literal"))
                return Instruction(Literal(), (), literal.shape, literal=literal)
            declared = Outline() if name == Outline.name else self._parameter(module, attributes)
            return Instruction(declared, (), shape_from_value(node.get("shape")))
        op = operator_from_value(name, attributes)
        shape = shape_from_value(node.get("shape"))
        computed = op.result_shape([i.shape for i in inputs], bodies)
        if shape != computed:
            raise FormatError(f"its shape is {{{shape}}} in the file and {{{computed}}} by the operator's rule")
        return Instruction(op, inputs, computed, bodies)

    def _parameter(self, module: Module, attributes: object) -> Parameter:
        names, orders = self._parameters.setdefault(module.name, (set(), set()))
        fields = attributes if isinstance(attributes, dict) else {}
        name, order = fields.get("parameter"), fields.get("order", 0)
        if not isinstance(name, str) or not isinstance(order, int) or isinstance(order, bool) or order < 0:
            raise FormatError("operator: 'parameter' must be a string, 'order' an integer from 0 on")
        if name in names or order in orders:
            raise FormatError(f"operator: parameter {name!r} or its order {order} is taken")
        names.add(name)
        orders.add(order)
        return Parameter(parameter=name, order=order)
