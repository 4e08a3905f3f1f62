"""``load``: reads a program from a file, or from the cached plan of that file."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..core.shape_json import shape_from_json
from ..errors import FormatError, OptionError
from ..graph.origin import Origin
from ..interrupts import whole_module
from ..targets import registry
from ..targets.base import Compiled, Kept
from .compiled_form import CompiledForm, target_options
from .file_kinds import taken_for
from .options import checked_device, parse_compile_options, trace_level
from .portable import FileForm, PortableForm
from .program import program
from .saving import SAVED_OPTIONS, checked_format, keep_plan
from .target import get_target
from .tuning import records_of

if TYPE_CHECKING:
    from ..codegen.store import Store
    from ..codegen.tuning.session import Tuning
    from ..graph.calibration import Calibration
    from ..graph.program import Program


def load(
    filename: str | os.PathLike[str], format: str = "msgpack", trust_objects: bool = False, device_id: int = 0
) -> program:
    """Read a program that ``save`` wrote; a program that was saved compiled is compiled for this machine.

    If the cache folder holds the plan of this file, the plan is used. The file is then decoded on first access to the
    program's instructions, and must not change before. Otherwise the file is read as a whole, and may change once this
    returns.

    Args:
        format: ``msgpack`` or ``json``.
        trust_objects: use the machine code in the file if CPU, features and versions match. The author of the file can
            then run any code in this process. Otherwise the machine code is ignored and kernels are built here.
        device_id: device to compile for, if the program was compiled for a device.

    Raises:
        FormatError: the file is malformed, or becomes shorter while it is read.
        OptionError: the format is unknown, or ``device_id`` is not a device number.
    """
    form = checked_format(format)
    if not isinstance(filename, (str, os.PathLike)):
        raise FormatError(f"load needs the path of an .mxr file, got {type(filename).__name__}")
    with taken_for(filename, "mxr"):
        return _loaded(filename, form, trust_objects, checked_device(device_id))


def _loaded(filename: str | os.PathLike[str], format: str, trust_objects: bool, device_id: int) -> program:
    if format == "json":
        _reading()
        from ..graph.mxr import load_program

        return _restored(*load_program(filename, format, trust_objects), device_id=device_id)
    whole_module("mgx_numba.api.saved_plans")
    from ..graph.content import open_content
    from .lineage import Lineage, ModelSource, environment
    from .saved_plans import find

    content = open_content(filename)

    def decode(whole: memoryview) -> tuple[Program, dict[str, object]]:
        _reading()
        from ..graph.mxr import load_content

        return load_content(whole, filename, with_objects=trust_objects)

    if environment() is None:
        return _restored(*decode(content.whole()), device_id=device_id)
    lineage = Lineage(ModelSource(content))

    def decoded() -> Any:
        return decode(lineage.source.whole()[0])

    build = functools.partial(_of_plan, device_id)
    found = find(lineage, build, decoded, device_id=device_id, trust_objects=trust_objects)
    if found is None:
        found = _restored(*decoded(), device_id=device_id)
        if found._form is not None:
            keep_plan(lineage, found._source, found._file, found._form, trust_objects)
    return found


def load_buffer(b: bytes, trust_objects: bool = False, device_id: int = 0) -> program:
    """Read a program from the bytes of ``save_buffer``; ``trust_objects`` and ``device_id`` as in ``load``.

    Raises:
        FormatError: the bytes are malformed, or ``b`` is not bytes.
    """
    if not isinstance(b, (bytes, bytearray, memoryview)):
        raise FormatError(f"load_buffer needs the bytes of an .mxr file, got {type(b).__name__}")
    _reading()
    from ..graph.mxr import load_buffer as from_bytes

    return _restored(*from_bytes(b, trust_objects), device_id=checked_device(device_id))


def _reading() -> None:
    """Import the decoder of programs."""
    whole_module("mgx_numba.graph.mxr")


def _restored(value: Any, extra: Mapping[str, Any], *, device_id: int) -> program:
    """Return the program of a decoded file: the portable form with its metadata, compiled if it was saved compiled.

    Raises:
        FormatError: the metadata is malformed.
    """
    from ..graph.machine_code import OBJECTS

    file = FileForm()
    result = program.wrap(value, file)
    if OBJECTS in extra:
        from ..codegen.embedding import EmbeddedStore

        file.store = EmbeddedStore(extra[OBJECTS])
    try:
        file.disabled_passes = tuple(str(n) for n in extra.get("disabled_passes", ()))
        if extra.get("tuning"):
            file.records = records_of(extra)
        file.find_calibration = lambda: _calibration(extra)
        compiled = extra.get("compiled")
        if compiled:
            result.compile(get_target(compiled["target"]), _saved_compile_options(compiled, device_id))
    except (AttributeError, KeyError, TypeError, OptionError) as error:
        raise FormatError(f"compile options in the file are malformed: {error}") from error
    return result


def _of_plan(
    device_id: int, kept: Kept, about: Mapping[str, Any], decoded: Callable[[], Any], store: Store | None
) -> tuple[Compiled, program]:
    """Return the program of a plan that `keep_plan` stored; ``decoded`` returns the decoded file."""
    saved, source, file = about["saved"], PortableForm(lambda: decoded()[0]), FileForm()
    chosen = get_target(saved["compiled"]["target"])
    options = parse_compile_options(_saved_compile_options(saved["compiled"], device_id), chosen.name())
    source.origin = Origin.from_json(about["origin"])
    file.target, file.options, file.store = chosen, options, store
    file.disabled_passes = tuple(saved["disabled_passes"])
    file.find_records = lambda: records_of(saved)
    file.find_calibration = lambda: _calibration(decoded()[1])

    def portable() -> Program:
        return source.program

    def tuning() -> Tuning | None:
        form = _restored(*decoded(), device_id=device_id)._form
        return None if form is None else form.tuning

    compiled = registry.target(chosen.name()).restore(kept, target_options(file, options), portable)
    parameters = {name: shape_from_json(entry) for name, entry in about["parameters"].items()}
    results = [shape_from_json(entry) for entry in about["results"]]
    messages = [text for text, _ in about["told"]]
    result = program.wrap(source, file)
    result._form = CompiledForm(compiled, chosen, parameters, results, trace_level(), tuning, messages)
    return compiled, result


def _calibration(extra: Mapping[str, object]) -> Calibration | None:
    """Return the calibration that a file holds; None if the program was not quantised."""
    if "calibration" not in extra:
        return None
    from ..graph.calibration import Calibration

    return Calibration.from_json(extra["calibration"])


def _saved_compile_options(compiled: Mapping[str, object], device_id: int) -> dict[str, object]:
    """Return the compile options that `saved_options` stored, for this device.

    Raises:
        FormatError: there are unknown options.
    """
    options = {k: v for k, v in compiled.items() if k != "target"}
    unknown = options.keys() - {*SAVED_OPTIONS, "offload_copy"}
    if unknown:
        names = ", ".join(sorted(map(str, unknown)))
        raise FormatError(f"compile options in the file are malformed: unknown {names}")
    return {**options, "device_id": device_id}
