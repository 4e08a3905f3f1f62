"""Cache of model metadata, so that a model that was read before is parsed only when its instructions are needed.

``<cache folder>/plans/models/<key>.json`` belongs to a model's content and parse options. It holds the shapes of inputs
and results, the metadata, and the warnings of parsing. It is written with the program's first plan: without a plan the
model has to be parsed anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..codegen.files import mark_used, read_trusted
from ..core.shape_json import shape_from_json, shape_to_json
from ..digest import digest
from ..errors import FormatError
from ..graph.origin import Origin
from ..messages import Messages, recorded, repeat_messages
from .digests import plans_folder
from .lineage import Lineage
from .portable import Known, PortableForm
from .saved_plans import finish_writing, write

if TYPE_CHECKING:
    from ..graph.program import Program


def derive(source: PortableForm, call: str, change: Callable[[Program], object]) -> bool:
    """Change a portable form, in place, and extend its lineage so that the result can be cached.

    Args:
        source: the portable form of an uncompiled program.
        call: text that determines the change, for the lineage.
        change: makes the change.

    Returns:
        False, with nothing changed, if its lineage is unknown; True otherwise.
    """
    lineage = source.lineage_now()
    if lineage is None:
        return False
    after, decode = lineage.after(call), source.decode

    def again() -> Program:
        found = decode()
        with recorded(quiet=True):
            change(found)
        return found

    known = None if source.decoded else find_known(after)
    if known is not None:
        repeat_messages(known.messages)
        source.lineage, source.known, source.decode, source.origin = after, known, again, known.origin
        return True
    portable = source.program
    source.lineage = None  # until the change is complete
    with recorded() as messages:
        change(portable)
    note(source, after, messages, again, {})
    return True


def keep_known(unkept: Sequence[tuple[Lineage, Known]]) -> None:
    """Store the metadata of a program whose plan is cached, and of each program that it was derived from."""
    for lineage, known in unkept:
        entry = {
            "external": lineage.source.external_states(),
            "parameters": {name: shape_to_json(s) for name, s in known.parameters.items()},
            "results": [shape_to_json(s) for s in known.results],
            "origin": known.origin.to_json(),
            "told": known.messages,
            "beside": known.beside,
        }
        path = _path(lineage)
        if path is not None:
            body = json.dumps(entry).encode()
            write(path, [digest(body).hex().encode(), b"\n", body])


def note(
    source: PortableForm,
    lineage: Lineage,
    messages: list[Messages],
    decode: Callable[[], Program],
    beside: Mapping[str, object],
) -> None:
    """Record the lineage and the metadata of a program that was read or changed."""
    portable = source.program
    source.take_lineage(lineage, decode)
    shapes = portable.parameter_shapes(), portable.output_shapes()
    source.unkept = [*source.unkept, (lineage, Known(*shapes, portable.origin, list(messages), beside))]


def find_known(lineage: Lineage, folders: Sequence[Path] = ()) -> Known | None:
    """Return the cached metadata of a program, or None; external data is searched for in ``folders``."""
    finish_writing()
    try:
        path = _path(lineage)
        if path is None:
            return None
        seal, _, body = read_trusted(path).partition(b"\n")
        if digest(body).hex().encode() != seal:
            return None
        entry = json.loads(body)
        source = lineage.source
        if entry["external"] and not source.external and not source.find_external(list(entry["external"]), folders):
            return None
        if source.external_states() != entry["external"]:
            source.external = {}
            return None
        parameters = {name: shape_from_json(s) for name, s in entry["parameters"].items()}
        results = [shape_from_json(s) for s in entry["results"]]
        known = Known(parameters, results, Origin.from_json(entry["origin"]), entry["told"], entry["beside"])
        mark_used(path)
        return known
    except (OSError, FormatError, KeyError, TypeError, ValueError, IndexError):
        return None


def _path(lineage: Lineage) -> Path | None:
    key = lineage.key("model", whole=False)
    return None if key is None else plans_folder() / "models" / f"{key}.json"
