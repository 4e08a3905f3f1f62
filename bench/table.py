"""Tables for a terminal: drawn by rich where it is installed, else in aligned text columns."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Cell", "show"]

Cell = str


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[Cell]], footer: Sequence[Cell] = ()) -> None:
    """Print a table; the first column is left-aligned, the others right-aligned."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(plain(title, header, rows, footer))
        return
    table = Table(show_footer=bool(footer))
    for k, name in enumerate(header):
        end = footer[k] if footer else ""
        table.add_column(name, footer=end, justify="left" if k == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(80, len(title), 4 + sum(_widths(header, [*rows, footer])) + 3 * len(header)))
    console.print(title, style="italic", markup=False, highlight=False)
    console.print(table)


def plain(title: str, header: Sequence[str], rows: Sequence[Sequence[Cell]], footer: Sequence[Cell] = ()) -> str:
    """Return the table as text in aligned columns."""
    body = [*rows, footer] if footer else list(rows)
    widths = _widths(header, body)
    lines = [title, _line(header, widths), "  ".join("-" * width for width in widths)]
    lines += [_line(row, widths) for row in rows]
    if footer:
        lines += [lines[2], _line(footer, widths)]
    return "\n".join(lines)


def _widths(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[int]:
    return [max(len(row[k]) for row in [header, *rows] if row) for k in range(len(header))]


def _line(cells: Sequence[Cell], widths: Sequence[int]) -> str:
    first, *others = (f"{cell:<{w}}" if k == 0 else f"{cell:>{w}}" for k, (cell, w) in enumerate(zip(cells, widths)))
    return "  ".join([first, *others]).rstrip()
