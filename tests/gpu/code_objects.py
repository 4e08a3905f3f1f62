"""A reader of AMD's code objects that works like a loader: by program headers, not by sections."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

import msgpack

DESCRIPTOR_BYTES = 64
ENTRY_OFFSET = 16
"""Where a kernel descriptor has the distance to the code: LLVM's AMDGPU usage, "Kernel Descriptor"."""


@dataclass
class CodeObject:
    """A loaded code object: ``memory`` from address 0 on, dynamic entries, kernel metadata, and executable
    addresses."""

    memory: bytes
    dynamic: dict[int, int]
    kernels: list[dict[str, object]]
    executable: range
    flags: int

    def symbol(self, name: str) -> tuple[int, int]:
        """Address and size of a symbol, found by its hash."""
        buckets, _ = struct.unpack_from("<II", self.memory, self.dynamic[4])
        words = struct.unpack_from(f"<{buckets}I", self.memory, self.dynamic[4] + 8)
        number = words[sysv_hash(name) % buckets]
        while number:
            at, _, _, _, value, size = struct.unpack_from("<IBBHQQ", self.memory, self.dynamic[6] + 24 * number)
            found = self.memory[self.dynamic[5] + at :].split(b"\0", 1)[0].decode()
            if found == name:
                return value, size
            (number,) = struct.unpack_from("<I", self.memory, self.dynamic[4] + 8 + 4 * (buckets + number))
        raise KeyError(name)

    def code(self, name: str) -> bytes:
        """A kernel's machine code, as its descriptor leads to it."""
        descriptor, size = self.symbol(f"{name}.kd")
        assert size == DESCRIPTOR_BYTES and descriptor % DESCRIPTOR_BYTES == 0
        (distance,) = struct.unpack_from("<q", self.memory, descriptor + ENTRY_OFFSET)
        entry, length = self.symbol(name)
        assert descriptor + distance == entry and entry % 256 == 0
        assert entry in self.executable and descriptor not in self.executable
        return self.memory[entry : entry + length]


def resources(text: str) -> dict[str, int]:
    """Return what AMD assembly of one kernel says of its registers, spills and memory, which its code object says too
    (`test_amd_objects.py`)."""
    found = re.findall(r"^  (?:- |  )(\.\w+): +(\d+)$", text[text.index(".amdgpu_metadata") :], re.MULTILINE)
    return {name: int(value) for name, value in found}


def sysv_hash(name: str) -> int:
    value = 0
    for letter in name.encode():
        value = (value * 16 + letter) % (1 << 32)
        value ^= (value >> 24) & 0xF0
    return value & 0x0FFFFFFF


def read_code_object(data: bytes) -> CodeObject:
    """Load it at address 0."""
    assert data[:7] == b"\x7fELF\x02\x01\x01" and data[7:9] == b"\x40\x03"  # AMD HSA, code object 5
    kind, machine, _, _, heads, _, flags, _, size, count = struct.unpack_from("<HHIQQQIHHH", data, 16)
    assert (kind, machine, size) == (3, 224, 56)
    memory, dynamic, kernels, executable = bytearray(), {}, [], range(0)
    segments = [struct.unpack_from("<IIQQQQQQ", data, heads + size * k) for k in range(count)]
    for what, rights, offset, address, _, length, wanted, alignment in segments:
        assert length == wanted and offset + length <= len(data) and (address - offset) % alignment == 0
        if what == 1:
            assert address // alignment * alignment >= len(memory)  # no page with other rights
            memory += bytes(address - len(memory)) + data[offset : offset + length]
            executable = range(address, address + length) if rights & 1 else executable
    for what, _, _, address, _, length, _, _ in segments:
        found = bytes(memory[address : address + length])
        if what == 2:
            dynamic = dict(struct.iter_unpack("<QQ", found))
        elif what == 4:
            owner, length, note = struct.unpack_from("<III", found)
            assert (found[12 : 12 + owner], note) == (b"AMDGPU\0", 32)
            start = 12 + owner + -owner % 4
            kernels = msgpack.unpackb(found[start : start + length])["amdhsa.kernels"]
    return CodeObject(bytes(memory), dynamic, kernels, executable, flags)
