"""``save``: a program with its weights, how it was compiled, and the plan that the next ``load`` finds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..core.shape_json import shape_to_json
from ..errors import OptionError, UnsupportedError
from ..interrupts import whole_module

if TYPE_CHECKING:
    from ..graph.program import Program
    from ..messages import Told
    from .lineage import Lineage
    from .program import program

__all__ = ["SAVED_OPTIONS", "checked_format", "keep_plan", "save", "save_buffer", "saved_options"]

SAVED_OPTIONS = ("fast_math", "num_threads", "memory_reuse", "disabled_passes", "float32_matmul_precision")
"""The compile options that a file keeps, those that are not None: a file must not make its reader measure, or read and
write files of tuning records."""


def save(
    p: program,
    filename: str | os.PathLike[str],
    format: str = "msgpack",
    embed_objects: bool = False,
    embed_library: bool = False,
) -> None:
    """Write a program to a file: the portable form, its weights and how it was compiled.

    Args:
        format: ``msgpack`` or ``json``.
        embed_objects: add the machine code of the compiled program, for readers that pass ``trust_objects=True``.
        embed_library: add the library that ``export_library`` writes, with its weights, for readers in C++ that
            trust it: see docs/cpp.md.

    Raises:
        OptionError: unknown format; machine code in JSON, or of a program whose target makes none; no program or path.
        MgxError: no library can be made of the program: errors are those of ``export_library``.
    """
    _check_program("save", p)
    if not isinstance(filename, (str, os.PathLike)):
        raise OptionError(f"save: filename must be a path, got {type(filename).__name__}")
    whole_module("mgx_numba.graph.mxr")
    from ..graph.mxr import save_program

    objects = _machine_code(p) if embed_objects else None
    library = _library(p) if embed_library else None
    save_program(p._portable, filename, checked_format(format), _beside(p), objects, library)
    if format == "msgpack" and p.is_compiled() and os.path.isfile(filename):  # a pipe's content is gone
        from ..graph.content import open_content
        from .lineage import Lineage, ModelSource, environment

        if environment() is None:
            return
        keep_plan(Lineage(ModelSource(open_content(filename))), p, embed_objects)


def save_buffer(p: program, embed_objects: bool = False, embed_library: bool = False) -> bytes:
    """What ``save`` would write (msgpack), as bytes.

    Raises:
        OptionError, MgxError: as `save`.
    """
    _check_program("save_buffer", p)
    whole_module("mgx_numba.graph.mxr")
    from ..graph.mxr import save_buffer as to_bytes

    objects, library = _machine_code(p) if embed_objects else None, _library(p) if embed_library else None
    return to_bytes(p._portable, _beside(p), objects=objects, library=library)


def _check_program(function: str, given: Any) -> None:
    if not hasattr(type(given), "_portable"):
        raise OptionError(f"{function} needs a program, got {type(given).__name__}")


def keep_plan(lineage: Lineage, p: program, with_code: bool = False, told: Sequence[Told] | None = None) -> bool:
    """Keep the plan of a program that is compiled in the cache folder, for this lineage; see `saved_plans.keep`.

    That of a program with a user's operators is not kept: their code is in no file, and may be another one next time.

    Args:
        told: the warnings of its compilation; None for those about tuning.

    Returns:
        Whether it is kept now.
    """
    if p._compiled is None or p._target is None or p._options is None or not p._options.plan_cache:
        return False
    if _has_custom(p._portable):
        return False
    from .saved_plans import keep

    about = {
        "saved": saved_options(p),
        "parameters": {name: shape_to_json(s) for name, s in p._signature.items()},
        "results": [shape_to_json(s) for s in p._results],
        "told": [[text, "RuntimeWarning"] for text in p._told] if told is None else list(told),
        "origin": p._origin.to_json(),
    }
    return keep(lineage, p._target.name(), p._compiled, about, with_code, p._options.device_id)


def _has_custom(portable: Program) -> bool:
    return any(ins.op.custom for module in portable.reachable_modules() for ins in module)


def _beside(p: program) -> dict[str, Any]:
    """All that a file keeps beside a program."""
    extra = saved_options(p)
    if p._calibration is not None:
        extra["calibration"] = p._calibration.to_json()
    return extra


def saved_options(p: program) -> dict[str, Any]:
    """What `save` keeps beside a program: how it was compiled, and the tuning records it went by."""
    extra: dict[str, Any] = {
        "disabled_passes": list(p._disabled_passes),
        "tuning": [record.to_json() for record in p._records],
    }
    if p._target is not None and p._options is not None:
        extra["compiled"] = {
            "target": p._target.name(),
            **{name: value for name in SAVED_OPTIONS if (value := getattr(p._options, name)) is not None},
            **({} if p._options.offload_copy else {"offload_copy": False}),
            "disabled_passes": list(p._options.disabled_passes),
        }
    return extra


def _machine_code(p: program) -> dict[str, Any]:
    """What `save` with ``embed_objects`` adds.

    Raises:
        OptionError: the program is not compiled, or its target makes none.
    """
    if p._compiled is None:
        raise OptionError("embed_objects: a program that is not compiled has no machine code")
    return p._compiled.machine_code()


def _library(p: program) -> dict[str, Any]:
    """What `save` with ``embed_library`` adds; errors are those of ``export_library``."""
    import tempfile  # late: few programs are saved so, and this imports much

    if any(s.is_dynamic for s in p._signature.values()):
        raise UnsupportedError(
            "embed_library: programs in C++ take libraries of fixed lengths; export_library writes others"
        )
    whole_module("mgx_numba.runtime.cpu.library.embedded")
    from ..runtime.cpu.library.embedded import library_tree

    with tempfile.TemporaryDirectory(prefix="mgx_numba_") as folder:
        return library_tree(p.export_library(folder, "program", link=True))


def checked_format(name: str) -> str:
    """The name of a format of files.

    Raises:
        OptionError: there is none of this name.
    """
    if name not in ("msgpack", "json"):
        raise OptionError(f"Unknown format: {name}; known: msgpack, json")
    return name
