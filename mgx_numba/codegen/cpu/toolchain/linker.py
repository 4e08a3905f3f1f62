"""Load x86-64 ELF objects into executable memory, without LLVM.

It knows the relocations of position-independent kernels (System V ABI, AMD64 supplement, 4.4.1). Memory is written
first and made executable then, never both at once, and lives until the process ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Iterator, Sequence

from ....core.pages import never_free
from ...elf import EM_X86_64, SHF_ALLOC, ElfObject, Relocation
from .symbols import address as library_address

# By the ELF specification and its x86-64 supplement.
_SHF_WRITE, _SHF_EXECINSTR, _SHF_TLS = 1, 4, 0x400
_R_64, _R_PC32, _R_PLT32, _R_GOTPCREL, _R_PC64, _R_GOTPCRELX, _R_REX_GOTPCRELX = 1, 2, 4, 9, 24, 41, 42
_GOT_TYPES = frozenset((_R_GOTPCREL, _R_GOTPCRELX, _R_REX_GOTPCRELX))
_TYPES = frozenset((_R_64, _R_PC32, _R_PLT32, _R_PC64)) | _GOT_TYPES
_SECTION_ALIGNMENT = 64  # bytes of a cache line
_JUMP = b"\xff\x25\x00\x00\x00\x00"
"""``jmp [rip]``: the target address follows."""
_STUB_BYTES = 16  # the jump and its address, rounded up to a power of two


def link(objects: Sequence[ElfObject]) -> dict[str, int] | None:
    """Return the addresses of the global symbols that objects define; the objects are loaded together.

    Returns None, with nothing loaded, if this linker does not support the system or an object.

    Raises:
        OSError: the system gives no executable memory.
    """
    if not sys.platform.startswith("linux") or not all(map(_is_known, objects)):
        return None
    return _Image(objects).place()


def _is_known(found: ElfObject) -> bool:
    loaded = {number for number, section in enumerate(found.sections) if section.flags & SHF_ALLOC}
    return (
        found.machine == EM_X86_64
        and found.complete
        and not any(s.flags & (_SHF_WRITE | _SHF_TLS) for s in found.sections if s.flags & SHF_ALLOC)
        and all(_is_reachable(found, r, loaded) for r in found.relocations if r.section in loaded)
    )


def _is_reachable(found: ElfObject, relocation: Relocation, loaded: set[int]) -> bool:
    if relocation.type not in _TYPES or relocation.symbol >= len(found.symbols):
        return False
    symbol = found.symbols[relocation.symbol]
    width = 8 if relocation.type in (_R_64, _R_PC64) else 4
    if relocation.offset + width > len(found.sections[relocation.section].data):
        return False
    return symbol.section in loaded or (symbol.section == 0 and library_address(symbol.name) is not None)


class _Image:
    """Memory for the loaded sections of objects: code and stubs on the first pages, constants on the other pages.

    A stub is a jump to a function of the C library, which is out of range of a call; a slot holds an address.
    """

    def __init__(self, objects: Sequence[ElfObject]) -> None:
        self._objects = objects
        self._sections: dict[tuple[int, int], int] = {}
        self._stubs: dict[str, int] = {}
        self._slots: dict[tuple[int, int], int] = {}
        self._end = 0
        self._take_sections(_SHF_EXECINSTR)
        for number, relocation in self._relocations():
            name = self._external(number, relocation.symbol)
            if name and relocation.type in (_R_PC32, _R_PLT32) and name not in self._stubs:
                self._stubs[name] = self._take(_STUB_BYTES, _STUB_BYTES)
        self._code_bytes = self._take(0, mmap.PAGESIZE)
        self._take_sections(0)
        for number, relocation in self._relocations():
            if relocation.type in _GOT_TYPES and (number, relocation.symbol) not in self._slots:
                self._slots[number, relocation.symbol] = self._take(8, 8)
        self._memory = mmap.mmap(-1, max(1, self._take(0, mmap.PAGESIZE)))
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def place(self) -> dict[str, int]:
        """Fill the memory, protect it, and return the addresses of the symbols that it defines."""
        for (number, section), offset in self._sections.items():
            self._write(offset, self._objects[number].sections[section].data)
        for name, offset in self._stubs.items():
            self._write(offset, _JUMP + struct.pack("<Q", library_address(name)))
        for (number, symbol), offset in self._slots.items():
            self._write(offset, struct.pack("<Q", self._address(number, symbol)))
        for number, relocation in self._relocations():
            self._relocate(number, relocation)
        self._protect()
        never_free(self._memory)
        return {
            symbol.name: self._address(number, k)
            for number, found in enumerate(self._objects)
            for k, symbol in enumerate(found.symbols)
            if not symbol.is_local and (number, symbol.section) in self._sections
        }

    def _relocations(self) -> Iterator[tuple[int, Relocation]]:
        for number, found in enumerate(self._objects):
            for relocation in found.relocations:
                if found.sections[relocation.section].flags & SHF_ALLOC:
                    yield number, relocation

    def _take(self, size: int, alignment: int) -> int:
        """Return the offset of the next ``size`` bytes at a multiple of ``alignment``."""
        begin = -(-self._end // alignment) * alignment
        self._end = begin + size
        return begin

    def _take_sections(self, executable: int) -> None:
        for number, found in enumerate(self._objects):
            for k, section in enumerate(found.sections):
                if section.flags & SHF_ALLOC and section.flags & _SHF_EXECINSTR == executable:
                    place = self._take(len(section.data), max(_SECTION_ALIGNMENT, section.alignment))
                    self._sections[number, k] = place

    def _external(self, number: int, symbol: int) -> str:
        """Return the name of the C library function that a symbol refers to; "" if the objects define it."""
        found = self._objects[number].symbols[symbol]
        return "" if found.section else found.name

    def _address(self, number: int, symbol: int) -> int:
        found = self._objects[number].symbols[symbol]
        if found.section:
            return self._base + self._sections[number, found.section] + found.value
        return library_address(found.name) or 0

    def _relocate(self, number: int, relocation: Relocation) -> None:
        offset = self._sections[number, relocation.section] + relocation.offset
        place = self._base + offset
        if relocation.type in _GOT_TYPES:
            target = self._base + self._slots[number, relocation.symbol]
        elif relocation.type in (_R_PC32, _R_PLT32) and (name := self._external(number, relocation.symbol)):
            target = self._base + self._stubs[name]
        else:
            target = self._address(number, relocation.symbol)
        value = target + relocation.addend
        if relocation.type == _R_64:
            self._write(offset, struct.pack("<Q", value))
        else:
            self._write(offset, struct.pack("<q" if relocation.type == _R_PC64 else "<i", value - place))

    def _write(self, offset: int, data: bytes) -> None:
        self._memory[offset : offset + len(data)] = data

    def _protect(self) -> None:
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        code, rest = self._code_bytes, len(self._memory) - self._code_bytes
        parts = ((0, code, mmap.PROT_READ | mmap.PROT_EXEC), (code, rest, mmap.PROT_READ))
        for offset, size, allowed in parts:
            if size and protect(self._base + offset, size, allowed):
                error = ctypes.get_errno()
                raise OSError(error, f"code cannot be made executable: {os.strerror(error)}")
