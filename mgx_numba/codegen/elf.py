"""What loading an ELF64 little-endian object safely needs to know: which symbols it defines and wants."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ..errors import FormatError

__all__ = ["ObjectSymbols", "read_symbols"]

_SHT_SYMTAB = 2
_STB_LOCAL = 0
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


@dataclass(frozen=True)
class ObjectSymbols:
    """Names of the global symbols of an object."""

    defined: frozenset[str]
    undefined: frozenset[str]


def read_symbols(data: bytes) -> ObjectSymbols:
    """Read the symbol table of a relocatable ELF64 object.

    Raises:
        FormatError: the bytes are not such an object.
    """
    try:
        return _read_symbols(data)
    except (struct.error, IndexError, ValueError) as error:
        raise FormatError(f"not a relocatable ELF64 object: {error}") from None


def _read_symbols(data: bytes) -> ObjectSymbols:
    header = _HEADER.unpack_from(data)
    if header[0][:6] != b"\x7fELF\x02\x01":
        raise ValueError("wrong magic number, expected 64-bit little-endian ELF")
    section_offset, section_size, section_count = header[6], header[11], header[12]
    sections = [_SECTION.unpack_from(data, section_offset + i * section_size) for i in range(section_count)]
    defined: set[str] = set()
    undefined: set[str] = set()
    for section in sections:
        if section[1] != _SHT_SYMTAB:
            continue
        offset, size, link = section[4], section[5], section[6]
        names_offset, names_size = sections[link][4], sections[link][5]
        names = data[names_offset : names_offset + names_size]
        for position in range(offset + _SYMBOL.size, offset + size, _SYMBOL.size):
            name_at, info, _, section_index, _, _ = _SYMBOL.unpack_from(data, position)
            if info >> 4 != _STB_LOCAL:
                name = names[name_at : names.index(b"\0", name_at)].decode("ascii")
                (defined if section_index else undefined).add(name)
    return ObjectSymbols(frozenset(defined), frozenset(undefined))
