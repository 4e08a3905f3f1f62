"""``save``: writes a program with its weights and compile options, and stores the plan for the next ``load``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.shape_json import shape_to_json
from ..errors import OptionError, UnsupportedError
from ..interrupts import whole_module
from ..targets.base import Exportable
from ..targets.registry import DEFAULT

if TYPE_CHECKING:
    from ..graph.program import Program
    from ..messages import Messages
    from ..runtime.library_form import LibraryForm
    from .compiled_form import CompiledForm
    from .lineage import Lineage
    from .portable import FileForm, PortableForm
    from .program import program

SAVED_OPTIONS = ("fast_math", "num_threads", "memory", "memory_reuse", "disabled_passes", "float32_matmul_precision")
"""Compile options that a file holds, if not None. Others are left out: a file must not make its reader measure, or
access files of tuning records."""


def save(
    p: program,
    filename: str | os.PathLike[str],
    format: str = "msgpack",
    embed_objects: bool = False,
    embed_library: bool = False,
) -> None:
    """Write a program to a file: the portable form, its weights and its compile options.

    Args:
        format: ``msgpack`` or ``json``.
        embed_objects: add the machine code of the compiled program, for readers that pass ``trust_objects=True``.
        embed_library: add the library that ``export_library`` writes, with its weights, for readers in C++ that trust
            it: see docs/cpp.md.

    Raises:
        OptionError: the format is unknown; machine code is requested in JSON, or for a target without machine code;
            ``p`` is not a program, or ``filename`` not a path.
        MgxError: the program cannot be exported as a library; errors as in ``export_library``.
    """
    _check_program("save", p)
    if not isinstance(filename, (str, os.PathLike)):
        raise OptionError(f"save: filename must be a path, got {type(filename).__name__}")
    whole_module("mgx_numba.graph.mxr")
    from ..graph.mxr import save_program

    objects = _machine_code(p._form) if embed_objects else None
    library = _library(p) if embed_library else None
    save_program(p.portable, filename, checked_format(format), _beside(p._file), objects, library)
    if format == "msgpack" and p._form is not None and os.path.isfile(filename):  # a pipe cannot be read again
        from ..graph.content import open_content
        from .lineage import Lineage, ModelSource, environment

        if environment() is None:
            return
        keep_plan(Lineage(ModelSource(open_content(filename))), p._source, p._file, p._form, embed_objects)


def save_buffer(p: program, embed_objects: bool = False, embed_library: bool = False) -> bytes:
    """Return the bytes that ``save`` would write (msgpack).

    Raises:
        OptionError, MgxError: as `save`.
    """
    _check_program("save_buffer", p)
    whole_module("mgx_numba.graph.mxr")
    from ..graph.mxr import save_buffer as to_bytes

    objects, library = _machine_code(p._form) if embed_objects else None, _library(p) if embed_library else None
    return to_bytes(p.portable, _beside(p._file), objects=objects, library=library)


def _check_program(function: str, given: object) -> None:
    if not hasattr(type(given), "portable"):
        raise OptionError(f"{function} needs a program, got {type(given).__name__}")


def keep_plan(
    lineage: Lineage,
    source: PortableForm,
    file: FileForm,
    form: CompiledForm,
    with_code: bool = False,
    messages: Sequence[Messages] | None = None,
    then: Callable[[], object] = lambda: None,
) -> None:
    """Store the plan of a compiled program in the cache folder under this lineage; see `saved_plans.keep`.

    Plans with custom operators are not stored: their code is in no file, and may differ in the next process.

    Args:
        messages: warnings of the compilation; None for the warnings about tuning.
        then: called once the plan is stored, possibly in another thread.
    """
    if file.options is None or not file.options.plan_cache or _has_custom(source.program):
        return
    from .saved_plans import keep

    about = {
        "saved": _saved_options(file),
        "parameters": {name: shape_to_json(s) for name, s in form.parameters.items()},
        "results": [shape_to_json(s) for s in form.results],
        "told": [[text, "RuntimeWarning"] for text in form.messages] if messages is None else list(messages),
        "origin": source.origin.to_json(),
    }
    keep(lineage, form.target.name(), form.compiled, about, with_code, file.options.device_id, then)


def _has_custom(portable: Program) -> bool:
    return any(ins.op.custom for module in portable.reachable_modules() for ins in module)


def saved_options(p: program) -> dict[str, object]:
    """Return the compile options and tuning records that `save` writes with a program."""
    return _saved_options(p._file)


def _beside(file: FileForm) -> dict[str, object]:
    """Return the metadata that a file holds with a program."""
    calibration = file.calibration
    return _saved_options(file) | ({} if calibration is None else {"calibration": calibration.to_json()})


def _saved_options(file: FileForm) -> dict[str, object]:
    extra: dict[str, object] = {
        "disabled_passes": list(file.disabled_passes),
        "tuning": [record.to_json() for record in file.records],
    }
    options = file.options
    if file.target is not None and options is not None:
        extra["compiled"] = {
            "target": file.target.name(),
            **{name: value for name in SAVED_OPTIONS if (value := getattr(options, name)) is not None},
            **({} if options.offload_copy else {"offload_copy": False}),
            "disabled_passes": list(options.disabled_passes),
        }
    return extra


def _machine_code(form: CompiledForm | None) -> dict[str, object]:
    """Return the machine code that ``embed_objects`` adds to a file.

    Raises:
        OptionError: the program is not compiled, or its target makes no machine code.
    """
    if form is None:
        raise OptionError("embed_objects: a program that is not compiled has no machine code")
    return form.compiled.machine_code()


def _library(p: program) -> dict[str, object]:
    """Return the library that ``embed_library`` adds to a file; errors as in ``export_library``."""
    import tempfile  # late: rarely needed, and slow to import

    if any(s.is_dynamic for s in p._parameters().values()):
        raise UnsupportedError(
            "embed_library: programs in C++ take libraries of fixed lengths; export_library writes others"
        )
    whole_module("mgx_numba.runtime.cpu.library.embedded")
    from ..runtime.cpu.library.embedded import library_tree

    with tempfile.TemporaryDirectory(prefix="mgx_numba_") as folder:
        return library_tree(p.export_library(folder, "program", link=True))


def export_library(p: program, folder: str | os.PathLike[str], name: str, form: LibraryForm) -> Path:
    """Write a compiled program as a shared library; see ``program.export_library``."""
    for argument, given, kinds in (("folder", folder, (str, os.PathLike)), ("name", name, (str,))):
        if not isinstance(given, kinds):
            raise OptionError(f"export_library: {argument} must be text, got {type(given).__name__}")
    compiled = p._needed("export_library writes what compile() makes of it").compiled
    if not isinstance(compiled, Exportable):
        raise OptionError(f"export_library: only the target {DEFAULT} writes libraries; compile for it")
    return compiled.export_library(Path(folder), name, p.get_output_names(), form)


def checked_format(name: str) -> str:
    """Validate the name of a file format and return it.

    Raises:
        OptionError: the format is unknown.
    """
    if name not in ("msgpack", "json"):
        raise OptionError(f"Unknown format: {name}; known: msgpack, json")
    return name
