"""Changes of a ``program`` in place, after which it is compiled again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..graph.program import Program
    from .program import program


def change(p: program, function: Callable[[Program], object], call: str = "", disabled: Sequence[str] = ()) -> program:
    """Change the portable form by ``function``, in place; a compiled program is compiled again, with its options.

    Args:
        p: the program, which is returned.
        function: makes the change.
        call: text that determines the change, for the lineage; empty if no text does.
        disabled: passes to leave out from now on.
    """
    if p._form is None:
        from .kept_models import derive

        if not (call and p._source.lineage is not None and derive(p._source, call, function)):
            p._source.lineage = None
            function(p.portable)
        p._file.disable(disabled)
        return p
    changed = p.clone()
    function(changed.portable)
    changed._file.disable(disabled)
    changed._compile_as(p)
    p._become(changed)
    return p
