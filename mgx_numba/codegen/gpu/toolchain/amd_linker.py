"""Link the relocatable object that LLVM emits for an AMD GPU to the code object that ROCm loads.

Little is needed: kernels have no calls and no data. Sources: LLVM's AMDGPU usage, "Code Object" and "ELF Code Object";
System V Application Binary Interface, generic part, chapters 4 and 5.
"""

from __future__ import annotations

import struct

from ....dataclass import dataclass
from ....errors import CompileError, FormatError
from ...elf import (
    HEADER,
    SECTION,
    SHF_ALLOC,
    SHT_NOTE,
    SHT_PROGBITS,
    SHT_STRTAB,
    SHT_SYMTAB,
    SYMBOL,
    ElfObject,
    Symbol,
    read_object,
)  # fmt: skip

# By the ELF specification, and LLVM's AMDGPU usage, "ELF Code Object".
EM_AMDGPU = 224
_ET_DYN = 3
_SHT_HASH, _SHT_DYNAMIC, _SHT_DYNSYM = 5, 6, 11
_SHF_WRITE, _SHF_EXECINSTR = 1, 4
_PT_LOAD, _PT_DYNAMIC, _PT_NOTE, _PT_PHDR = 1, 2, 4, 6
_PF_X, _PF_W, _PF_R = 1, 2, 4
_DT_END, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT = 0, 4, 5, 6, 10, 11
_R_AMDGPU_REL64 = 5
_PROGRAM = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<QQ")
_SEGMENTS = 6
"""Program headers: read-only, code, writable, dynamic, notes, and the header table itself."""
PAGE = 4096
"""Alignment (bytes) of segments in memory; code shares no page with data."""
_LOADED = (".note", ".rodata", ".text")
"""Sections that are loaded: kernel metadata, kernel descriptors, code."""


@dataclass
class _Section:
    """A section of the code object; ``segment`` is the number of segments before its own."""

    name: str
    kind: int
    flags: int
    data: bytes
    alignment: int
    segment: int = 0
    link: str = ""
    info: int = 0
    entry: int = 0
    offset: int = 0

    @property
    def address(self) -> int:
        """Return the address relative to the load address; 0 for a section that is not loaded."""
        return self.offset + PAGE * self.segment if self.flags & SHF_ALLOC else 0


def link(data: bytes) -> bytes:
    """Link a relocatable object.

    Raises:
        CompileError: it is not an AMD object, or contains data, calls or unsupported relocations.
    """
    try:
        source = read_object(data)
    except FormatError as error:
        raise CompileError(f"LLVM made {error}") from None
    _check(source)
    exported = [symbol for symbol in source.symbols[1:] if not symbol.is_local]
    parts = _parts(source, exported)
    offset = HEADER.size + _SEGMENTS * _PROGRAM.size
    for part in parts.values():
        offset += -offset % part.alignment
        part.offset = offset
        offset += len(part.data)
    numbers = {name: k for k, name in enumerate(parts, 1)}
    _fill(parts, numbers, source, exported)
    return _written(source, parts, numbers, offset)


def _check(source: ElfObject) -> None:
    if source.machine != EM_AMDGPU:
        raise CompileError(f"LLVM made an object of machine {source.machine}; {EM_AMDGPU}, AMD's GPUs, was expected")
    if source.undefined:
        raise CompileError(f"the object calls {', '.join(sorted(source.undefined))}, which no kernel may call")
    missing = set(_LOADED) - {section.name for section in source.sections}
    if missing:
        raise CompileError(f"the object has no {', '.join(sorted(missing))}")
    for section in source.sections:
        if section.flags & SHF_ALLOC and section.data and section.name not in _LOADED:
            raise CompileError(f"the object has a section {section.name}; no kernel has data of its own")
    for relocation in source.relocations:
        if relocation.type != _R_AMDGPU_REL64 or source.sections[relocation.section].name != ".rodata":
            name = source.sections[relocation.section].name
            raise CompileError(f"the object has a relocation of type {relocation.type} in {name}, which is not known")


def _parts(source: ElfObject, exported: list[Symbol]) -> dict[str, _Section]:
    """Return the sections in order; those that contain addresses are zero-filled."""
    own = {section.name: section for section in source.sections if section.name in _LOADED}
    names = b"\0" + b"".join(symbol.name.encode() + b"\0" for symbol in exported)
    table = bytes(SYMBOL.size * (len(exported) + 1))
    hashes = bytes(4 * (3 + 2 * len(exported)))
    code = _SHF_EXECINSTR | SHF_ALLOC
    made = [
        _Section(".note", SHT_NOTE, SHF_ALLOC, own[".note"].data, 4),
        _Section(".dynsym", _SHT_DYNSYM, SHF_ALLOC, table, 8, link=".dynstr", info=1, entry=SYMBOL.size),
        _Section(".hash", _SHT_HASH, SHF_ALLOC, hashes, 4, link=".dynsym", entry=4),
        _Section(".dynstr", SHT_STRTAB, SHF_ALLOC, names, 1),
        _Section(".rodata", SHT_PROGBITS, SHF_ALLOC, own[".rodata"].data, own[".rodata"].alignment),
        _Section(".text", SHT_PROGBITS, code, own[".text"].data, own[".text"].alignment, segment=1),
        _Section(".dynamic", _SHT_DYNAMIC, _SHF_WRITE | SHF_ALLOC, bytes(6 * _ENTRY.size), 8, segment=2, link=".dynstr",
              entry=_ENTRY.size),
        _Section(".symtab", SHT_SYMTAB, 0, table, 8, link=".strtab", info=1, entry=SYMBOL.size),
        _Section(".strtab", SHT_STRTAB, 0, names, 1),
        _Section(".shstrtab", SHT_STRTAB, 0, b"", 1),
    ]  # fmt: skip
    made[-1].data = b"\0" + b"".join(part.name.encode() + b"\0" for part in made)
    return {part.name: part for part in made}


def _fill(parts: dict[str, _Section], numbers: dict[str, int], source: ElfObject, exported: list[Symbol]) -> None:
    """Write everything that depends on addresses."""

    def place(symbol: Symbol) -> int:
        return parts[source.sections[symbol.section].name].address + symbol.value

    descriptors = bytearray(parts[".rodata"].data)
    for one in source.relocations:
        distance = place(source.symbols[one.symbol]) + one.addend - (parts[".rodata"].address + one.offset)
        struct.pack_into("<q", descriptors, one.offset, distance)
    parts[".rodata"].data = bytes(descriptors)
    table, at = bytearray(SYMBOL.size), 1
    for symbol in exported:
        number = numbers[source.sections[symbol.section].name]
        table += SYMBOL.pack(at, symbol.info, symbol.other, number, place(symbol), symbol.size)
        at += len(symbol.name) + 1
    parts[".dynsym"].data = parts[".symtab"].data = bytes(table)
    parts[".hash"].data = _hash_table([symbol.name.encode() for symbol in exported])
    told = (
        (_DT_HASH, parts[".hash"].address), (_DT_SYMTAB, parts[".dynsym"].address), (_DT_SYMENT, SYMBOL.size),
        (_DT_STRTAB, parts[".dynstr"].address), (_DT_STRSZ, len(parts[".dynstr"].data)), (_DT_END, 0),
    )  # fmt: skip
    parts[".dynamic"].data = b"".join(_ENTRY.pack(*entry) for entry in told)


def _hash_table(names: list[bytes]) -> bytes:
    """Return the symbol hash table with one bucket per symbol; collisions form chains."""
    buckets, chain = [0] * max(len(names), 1), [0] * (len(names) + 1)
    for number, name in enumerate(names, 1):
        bucket = _hash(name) % len(buckets)
        chain[number], buckets[bucket] = buckets[bucket], number
    return struct.pack(f"<{2 + len(buckets) + len(chain)}I", len(buckets), len(chain), *buckets, *chain)


def _hash(name: bytes) -> int:
    """Return the ELF hash of a name: System V Application Binary Interface, "Hash Table"."""
    value = 0
    for letter in name:
        value = (value << 4) + letter
        top = value & 0xF0000000
        value = (value ^ top >> 24) & ~top  # the top four bits of 32 go into the second four
    return value


def _written(source: ElfObject, parts: dict[str, _Section], numbers: dict[str, int], end: int) -> bytes:
    sections = end + -end % 8
    out = bytearray(sections + SECTION.size * (len(parts) + 1))
    HEADER.pack_into(
        out, 0, source.ident, _ET_DYN, EM_AMDGPU, 1, 0, HEADER.size, sections, source.flags, HEADER.size, _PROGRAM.size,
        _SEGMENTS, SECTION.size, len(parts) + 1, numbers[".shstrtab"],
    )  # fmt: skip
    heads = _SEGMENTS * _PROGRAM.size
    first = parts[".rodata"].offset + len(parts[".rodata"].data)
    segments = [(_PT_PHDR, _PF_R, HEADER.size, HEADER.size, heads, 8), (_PT_LOAD, _PF_R, 0, 0, first, PAGE)]
    for kind, rights, name, alignment in (
        (_PT_LOAD, _PF_R | _PF_X, ".text", PAGE),
        (_PT_LOAD, _PF_R | _PF_W, ".dynamic", PAGE),
        (_PT_DYNAMIC, _PF_R | _PF_W, ".dynamic", 8),
        (_PT_NOTE, _PF_R, ".note", 4),
    ):
        part = parts[name]
        segments.append((kind, rights, part.offset, part.address, len(part.data), alignment))
    for k, (kind, rights, offset, address, size, alignment) in enumerate(segments):
        told = (kind, rights, offset, address, address, size, size, alignment)
        _PROGRAM.pack_into(out, HEADER.size + k * _PROGRAM.size, *told)
    for name, part in parts.items():
        out[part.offset : part.offset + len(part.data)] = part.data
        named = parts[".shstrtab"].data.index(b"\0" + name.encode() + b"\0") + 1
        SECTION.pack_into(
            out, sections + SECTION.size * numbers[name], named, part.kind, part.flags, part.address, part.offset,
            len(part.data), numbers.get(part.link, 0), part.info, part.alignment, part.entry,
        )  # fmt: skip
    return bytes(out)
