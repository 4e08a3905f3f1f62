"""ELF64 little-endian objects: read sections, symbols and relocations of a relocatable object; write an object with
data.

System V Application Binary Interface, generic part, chapters 4 and 5.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ..dataclass import dataclass
from ..errors import FormatError

# By the ELF specification.
SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_RELA, SHT_NOTE, SHT_NOBITS, SHT_REL = 1, 2, 3, 4, 7, 8, 9
SHF_ALLOC = 2
_STB_LOCAL, _GLOBAL_OBJECT, _HIDDEN = 0, 0x11, 2
_ET_REL, EM_X86_64 = 1, 62
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")


@dataclass(frozen=True)
class Section:
    """A section: name, type (``SHT_``), flags (``SHF_``), bytes, and alignment."""

    name: str
    kind: int
    flags: int
    data: bytes
    alignment: int


@dataclass(frozen=True)
class Symbol:
    """A symbol: ``section`` is 0 if another object defines it; ``value`` is an offset into its section; ``info``
    (binding and type) and ``other`` (visibility) as in the table."""

    name: str
    section: int
    value: int
    size: int
    info: int
    other: int

    @property
    def is_local(self) -> bool:
        """Return whether the symbol is local to its object."""
        return self.info >> 4 == _STB_LOCAL


@dataclass(frozen=True)
class Relocation:
    """A reference at ``offset`` in ``section`` to ``symbol`` plus ``addend``, encoded as ``type`` says."""

    section: int
    offset: int
    type: int
    symbol: int
    addend: int


@dataclass(frozen=True)
class ElfObject:
    """A relocatable object.

    Attributes:
        machine: ``e_machine``, the instruction set.
        flags: ``e_flags``.
        ident: the file's first 16 bytes.
        sections: by index; the first is empty.
        symbols: by index; the first is empty.
        complete: whether all relocations and sections are of supported kinds.
    """

    machine: int
    flags: int
    ident: bytes
    sections: list[Section]
    symbols: list[Symbol]
    relocations: list[Relocation]
    complete: bool

    @property
    def defined(self) -> frozenset[str]:
        """Return the names of the global symbols that it defines."""
        return frozenset(s.name for s in self.symbols[1:] if not s.is_local and s.section)

    @property
    def undefined(self) -> frozenset[str]:
        """Return the names of the global symbols that it references but does not define."""
        return frozenset(s.name for s in self.symbols[1:] if not s.is_local and not s.section)


def read_object(data: bytes) -> ElfObject:
    """Read a relocatable ELF64 object.

    Raises:
        FormatError: the bytes are not such an object.
    """
    try:
        return _read_object(data)
    except (struct.error, IndexError, ValueError) as error:
        raise FormatError(f"not a relocatable ELF64 object: {error}") from None


def _read_object(data: bytes) -> ElfObject:
    header = HEADER.unpack_from(data)
    if header[0][:6] != b"\x7fELF\x02\x01":
        raise ValueError("wrong magic number, expected 64-bit little-endian ELF")
    section_offset, section_size, section_count = header[6], header[11], header[12]
    heads = [SECTION.unpack_from(data, section_offset + i * section_size) for i in range(section_count)]
    symbols: list[Symbol] = []
    relocations: list[Relocation] = []
    for head in heads:
        if head[1] == SHT_SYMTAB:
            symbols += _symbols(_bytes(data, head), _bytes(data, heads[head[6]]))
        elif head[1] == SHT_RELA:
            for at, info, addend in _RELA.iter_unpack(_bytes(data, head)):
                relocations.append(Relocation(head[7], at, info & 0xFFFFFFFF, info >> 32, addend))
    complete = not any(head[1] in (SHT_REL, SHT_NOBITS) for head in heads)
    names = _bytes(data, heads[header[13]]) if heads else b""
    sections = [_section(data, head, _text(names, head[0])) for head in heads]
    return ElfObject(header[2], header[7], header[0], sections, symbols, relocations, complete)


def _section(data: bytes, head: tuple[int, ...], name: str) -> Section:
    return Section(name, head[1], head[2], b"" if head[1] == SHT_NOBITS else _bytes(data, head), max(1, head[8]))


def _bytes(data: bytes, head: tuple[int, ...]) -> bytes:
    offset, size = head[4], head[5]
    if head[1] and offset + size > len(data):
        raise ValueError("a section ends behind the end of the file")
    return data[offset : offset + size]


def _symbols(table: bytes, names: bytes) -> list[Symbol]:
    symbols = []
    for name_at, info, other, section, value, size in SYMBOL.iter_unpack(table):
        symbols.append(Symbol(_text(names, name_at), section, value, size, info, other))
    return symbols


def _text(names: bytes, at: int) -> str:
    """Return a name from a string table."""
    return names[at : names.index(b"\0", at)].decode("ascii")


def data_object(
    symbol: str, pieces: Sequence[bytes | memoryview], size: int, alignment: int
) -> list[bytes | memoryview]:
    """Return an x86-64 object, in pieces, that defines hidden symbol ``symbol`` as ``size`` read-only bytes with this
    alignment."""
    names = b"\0.rodata\0.symtab\0.strtab\0.note.GNU-stack\0"  # the last one: no executable stack
    symbols = SYMBOL.pack(0, 0, 0, 0, 0, 0) + SYMBOL.pack(len(names), _GLOBAL_OBJECT, _HIDDEN, 1, 0, size)
    strings = names + symbol.encode("ascii") + b"\0"
    padding = -size % 8
    tables = alignment + size + padding
    heads = [
        ("", 0, 0, 0, 0, 0, 0, 0, 0),
        (".rodata", SHT_PROGBITS, SHF_ALLOC, alignment, size, 0, 0, alignment, 0),
        (".symtab", SHT_SYMTAB, 0, tables, len(symbols), 3, 1, 8, SYMBOL.size),
        (".strtab", SHT_STRTAB, 0, tables + len(symbols), len(strings), 0, 0, 1, 0),
        (".note.GNU-stack", SHT_PROGBITS, 0, tables, 0, 0, 0, 1, 0),
    ]
    end = tables + len(symbols) + len(strings)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    place = end + -end % 8
    header = (ident, _ET_REL, EM_X86_64, 1, 0, 0, place, 0, HEADER.size, 0, 0, SECTION.size, len(heads), 3)
    packed = [
        SECTION.pack(names.index(name.encode() + b"\0"), kind, flags, 0, at, length, link, info, align, entry)
        for name, kind, flags, at, length, link, info, align, entry in heads
    ]
    return [
        HEADER.pack(*header).ljust(alignment, b"\0"),
        *pieces,
        bytes(padding) + symbols + strings + bytes(place - end) + b"".join(packed),
    ]
