"""Our own linker places objects emitted by LLVM as LLVM does, and leaves objects with unknown features to LLVM."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
import platform as python_platform
import struct
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from mgx_numba.codegen import platform
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.cpu.toolchain import linker, loader
from mgx_numba.codegen.elf import ElfObject, Relocation, read_object
from mgx_numba.codegen.files import replace_file
from mgx_numba.runtime.host.native import NativeKernel

from ..running import said

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or python_platform.machine() != "x86_64", reason="LLVM links here"
)

# A jump table, constants of 64 bytes, a call of another function of the object, and one of the C library.
TEXT = """
declare double @pow(double, double)
@row = private constant <16 x i32> <i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8,
                                    i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15, i32 16>, align 64
@names = private constant [2 x ptr] [ptr @one, ptr @two]
define internal i64 @one() noinline { ret i64 11 }
define internal i64 @two() noinline { ret i64 22 }
define i64 @indirect_SUFFIX(i64 %i) {
  %p = getelementptr [2 x ptr], ptr @names, i64 0, i64 %i
  %f = load ptr, ptr %p
  %v = call i64 %f()
  ret i64 %v
}
define i64 @element_SUFFIX(i64 %i) {
  %p = getelementptr i32, ptr @row, i64 %i
  %v = load i32, ptr %p, align 4
  %w = sext i32 %v to i64
  ret i64 %w
}
define double @power_SUFFIX(double %x, double %y) {
  %v = call double @pow(double %x, double %y)
  ret double %v
}
define i64 @choice_SUFFIX(i64 %i) {
  switch i64 %i, label %no [i64 0, label %a  i64 1, label %b  i64 2, label %c  i64 3, label %d  i64 4, label %e]
a:
  %ra = call i64 @one()
  ret i64 %ra
b:
  %rb = call i64 @two()
  ret i64 %rb
c:
  %rc = call i64 @element_SUFFIX(i64 2)
  ret i64 %rc
d:
  ret i64 44
e:
  %re = call i64 @indirect_SUFFIX(i64 1)
  ret i64 %re
no:
  ret i64 -1
}
"""


def emitted(text: str) -> ElfObject:
    with host.target_machine() as machine, llvm.parse_assembly(text) as module:
        return read_object(machine.emit_object(module))


def integer(address: int) -> ctypes._FuncPointer:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)


def test_jump_tables_constants_and_calls():
    suffixes = ["a", "b"]
    placed = linker.link([emitted(_without_table(TEXT, suffix)) for suffix in suffixes])
    assert placed is not None
    for suffix in suffixes:
        choice, element = (integer(placed[f"{name}_{suffix}"]) for name in ("choice", "element"))
        assert [choice(i) for i in (0, 1, 2, 3, 7, -1)] == [11, 22, 3, 44, -1, -1]
        assert [element(i) for i in range(16)] == list(range(1, 17))
        power = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)(placed[f"power_{suffix}"])
        assert power(2.5, 3.5) == math.pow(2.5, 3.5)


def _without_table(text: str, suffix: str) -> str:
    begin, end = text.index("define i64 @indirect"), text.index("define i64 @element")
    text = text[:begin] + text[end:]
    text = "\n".join(line for line in text.splitlines() if not line.startswith("@names"))
    return text.replace("call i64 @indirect_SUFFIX(i64 1)", "call i64 @two()").replace("SUFFIX", suffix)


def test_pointers_that_wait_in_writable_memory_are_left_to_llvm():
    assert linker.link([emitted(TEXT.replace("SUFFIX", "table"))]) is None


def test_code_is_not_writable_and_constants_are_not_executable():
    placed = linker.link([emitted(_without_table(TEXT, "maps"))])
    assert placed is not None
    address = placed["choice_maps"]
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, rights = line.split()[:2]
        first, last = (int(bound, 16) for bound in bounds.split("-"))
        if first <= address < last:
            assert rights.startswith("r-x")
            break
    else:
        pytest.fail("the code is nowhere")


@pytest.mark.parametrize(
    "change", ["machine", "incomplete", "type", "symbol", "offset", "external", "writable", "threads"]
)
def test_what_it_does_not_know_is_left_to_llvm(change: str):
    found = emitted(_without_table(TEXT, "no"))
    first = next(r for r in found.relocations if found.sections[r.section].flags & 2)
    others = [r for r in found.relocations if r is not first]
    relocations = {"type": {"type": 99}, "symbol": {"symbol": 10_000}, "offset": {"offset": 1 << 40}}
    if change == "machine":
        found = dataclasses.replace(found, machine=183)
    elif change == "incomplete":
        found = dataclasses.replace(found, complete=False)
    elif change in relocations:
        found = dataclasses.replace(found, relocations=[*others, dataclasses.replace(first, **relocations[change])])
    elif change == "external":
        found = emitted(_without_table(TEXT, "no").replace("@pow", "@system"))
    else:
        flag = 1 if change == "writable" else 0x400
        sections = [dataclasses.replace(s, flags=s.flags | flag) if s.flags & 2 else s for s in found.sections]
        found = dataclasses.replace(found, sections=sections)
    assert linker.link([found]) is None


def test_an_address_in_the_table_of_addresses():
    """The loads through a global offset table that other code models emit."""
    code = bytes.fromhex("488b0500000000c3")  # mov rax, [rip + 0]; ret
    found = emitted("define i64 @through() { ret i64 5 }\n@kept = constant i64 77, align 8\n")
    text = next(k for k, s in enumerate(found.sections) if s.flags & 4)
    kept = next(k for k, s in enumerate(found.symbols) if s.name == "kept")
    sections = [dataclasses.replace(s, data=code) if k == text else s for k, s in enumerate(found.sections)]
    for kind in (9, 41, 42):
        edited = dataclasses.replace(found, sections=sections, relocations=[Relocation(text, 3, kind, kept, -4)])
        placed = linker.link([edited])
        assert placed is not None
        pointer = integer(placed["through"])(0)
        assert pointer == placed["kept"]
        assert struct.unpack("<q", ctypes.string_at(pointer, 8)) == (77,)


def test_llvm_loads_where_the_linker_does_not(monkeypatch: pytest.MonkeyPatch):
    text = "def kernel(args, begin, end):\n    words_at(args, 0)[begin] = end + 1\n"
    source = cpu_kernel("loaded_by_llvm", text)
    monkeypatch.setattr(loader, "link", lambda objects: None)
    monkeypatch.setattr(loader, "_addresses", {})
    (address,) = loader.load([source])
    word = ctypes.c_int64()
    args = (ctypes.c_int64 * 1)(ctypes.addressof(word))
    NativeKernel(address)(ctypes.addressof(args), 0, 41)
    assert word.value == 42


RUNNING = """
import threading, time
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.cpu.toolchain import loader
from mgx_numba.runtime.host.native import NativeKernel

TEXT = '''
def kernel(args, begin, end):
    until = nanoseconds() + begin
    while nanoseconds() < until:
        pass
'''
CHANGE
wait = NativeKernel(loader.load([cpu_kernel("waiting_kernel", TEXT)])[0])
threading.Thread(target=wait, args=(0, 10**11, 0), daemon=True).start()
time.sleep(0.05)
print("end")
"""


@pytest.mark.parametrize("change", ["", "loader.link = lambda objects: None"])
def test_code_of_a_daemon_thread_stays_while_the_interpreter_exits(change: str):
    """The code was unmapped when modules were cleared: a process that exited during a run crashed."""
    assert said(RUNNING.replace("CHANGE", change)) == "end"


def test_the_platform_is_asked_once(tmp_path: Path):
    program = (
        "import sys, json; from dataclasses import asdict; from mgx_numba.codegen.platform import platform\n"
        "print(json.dumps([asdict(platform()), 'llvmlite' in sys.modules]))\n"
    )

    def ask() -> list:
        return json.loads(said(program, MGX_CACHE_DIR=tmp_path))

    first, second = ask(), ask()
    assert first == [dataclasses.asdict(platform.platform()), True]
    assert second == [first[0], False]
    (path,) = tmp_path.glob("platform-*.json")
    for damage in (b"", b"{}", path.read_bytes().replace(b'"cpu": "', b'"cpus": "'), b'{"key": 1, "platform": {}}'):
        replace_file(path, damage)
        assert ask() == first
    stored = json.loads(path.read_bytes())
    stored["platform"]["features"] = {"avx": "yes"}
    replace_file(path, json.dumps(stored).encode())
    assert ask() == first
