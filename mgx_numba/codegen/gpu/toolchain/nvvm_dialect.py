"""LLVM IR as llvmlite writes it, in the words that NVIDIA's libNVVM knows.

Below compute capability 10 libNVVM reads the language of LLVM 7, and at any only intrinsics of single numbers: NVVM IR
Specification, "Introduction" and "Intrinsic functions". Each line of llvmlite's text is one instruction or declaration.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["nvvm_text"]

_FLAGS = r"((?:(?:nnan|ninf|nsz|arcp|contract|afn|reassoc|fast) )*)"
_KIND = r"(<\d+ x \w+>|\w+)"
_SPLAT = re.compile(r"splat \((\w+)\s+([^()]+)\)")
_VECTOR = re.compile(r"<(\d+) x (\w+)>")
_NEGATION = re.compile(rf"^(\s*%\S+ = )fneg {_FLAGS}{_KIND} (.+)$")
_FREEZE = re.compile(rf"^(\s*%\S+ = )freeze {_KIND} (.+)$")
_CHOICE = re.compile(rf"\bselect {_FLAGS}")
_CALL = re.compile(rf'^\s*(%\S+) = call {_FLAGS}({{.*?}}|<\d+ x \w+>|\w+) @"(llvm\.[\w.]+)"\((.*)\)$')
_CALL_OF_NOTHING = re.compile(r'^\s*()call ()(void) @"(llvm\.[\w.]+)"\((.*)\)$')
_DECLARED = re.compile(r'^declare .*@"(llvm\.[\w.]+)"\(')
_MINUS_ZERO = {"float": "0x8000000000000000", "double": "0x8000000000000000", "half": "0xH8000"}
"""-0 by type, as LLVM writes it: float with the digits of double."""
_COMPARED = {"smin": "slt", "smax": "sgt", "umin": "ult", "umax": "ugt"}
"""How integers compare of which the first is taken."""
_TOWARDS_NAN = {"minimum": "minnum", "maximum": "maxnum"}
"""What gives the other operand where one is NaN; PTX's instruction for it orders zeros, too."""
_NAMED = {"llvm.nvvm.ex2.approx.ftz.f32": "llvm.nvvm.ex2.approx.ftz.f"}
_BARRIER = "llvm.nvvm.barrier.cta.sync.aligned.all"
_SATURATED = {"fptosi": ("i", "ll", "slt", "sgt"), "fptoui": ("ui", "ull", "ult", "ugt")}
"""What the names of saturating conversions to 32 and 64 bits have, and how such integers compare."""
_REGISTERS = {"llvm.nvvm.read.ptx.sreg.cluster.ctarank": "%cluster_ctarank"}
_ANY = "llvm.vector.reduce.or."
_MMA = "llvm.nvvm.mma."
_MULTIPLIED = {"f32.f32": "f32.f16.f16.f32", "bf16": "f32.bf16.bf16.f32", "tf32": "f32.tf32.tf32.f32"}
"""Types of sums, a, b and sums as PTX writes them, by what LLVM's names end with; of integers "s8" or "s8.u8" stands
for both, and of others the name has all four."""
_SUM = re.compile(r"float|i32")

_Operands = Sequence[tuple[str, str]]


def nvvm_text(text: str) -> str:
    """The same module in libNVVM's words. What it has none for stays, and libNVVM refuses it by name."""
    unit = _Unit()
    for line in text.splitlines():
        unit.add(line)
    return "\n".join([*unit.lines, *unit.declared.values()]) + "\n"


def _vector(kind: str) -> tuple[int, str]:
    """Lanes, 0 of a single number, and the type of an element."""
    found = _VECTOR.fullmatch(kind)
    return (int(found[1]), found[2]) if found else (0, kind)


def _spread(line: str) -> str:
    """The line with each constant of equal lanes written out: it has the type of the last vector before it."""

    def written(found: re.Match[str]) -> str:
        element, value = found.groups()
        lanes = [n for n, kind in _VECTOR.findall(line[: found.start()]) if kind == element][-1]
        return f"<{', '.join([f'{element} {value.strip()}'] * int(lanes))}>"

    return _SPLAT.sub(written, line)


def _operands(text: str) -> list[tuple[str, str]]:
    """Type and value of each operand of a call."""
    found, depth, start = [], 0, 0
    for k, letter in enumerate(f"{text},"):
        depth += (letter in "<([{") - (letter in ">)]}")
        if letter == "," and not depth:
            part = text[start:k].strip()
            kind = _VECTOR.match(part)
            end = kind.end() if kind else part.find(" ")
            found += [(part[:end], part[end:].strip())] if part else []
            start = k + 1
    return found


class _Unit:
    """A module on its way.

    Attributes:
        lines: its text so far, less the declarations of intrinsics.
        declared: these, of the intrinsics that are called, by name.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self._count = 0

    def add(self, line: str) -> None:
        """Write what stands for a line."""
        if _DECLARED.match(line):
            return
        line = _CHOICE.sub("select ", _spread(line).replace("poison", "undef"))
        if found := _NEGATION.match(line):
            name, flags, kind, value = found.groups()
            lanes, element = _vector(kind)
            zero = _MINUS_ZERO[element]
            left = f"<{', '.join([f'{element} {zero}'] * lanes)}>" if lanes else zero
            self.lines.append(f"{name}fsub {flags}{kind} {left}, {value}")
        elif found := _FREEZE.match(line):
            name, kind, value = found.groups()
            self.lines.append(f"{name}bitcast {kind} {value} to {kind}")
        elif found := _CALL.match(line) or _CALL_OF_NOTHING.match(line):
            self._call(*found.groups())
        else:
            self.lines.append(line)

    def _write(self, text: str, name: str = "") -> str:
        """Write an instruction; the name of its result."""
        if not name:
            self._count += 1
            name = f'%"nvvm.{self._count}"'
        self.lines.append(f"  {name} = {text}")
        return name

    def _lane(self, kind: str, value: str, lane: int) -> tuple[str, str]:
        """An element of a vector as an operand; a single number itself."""
        count, element = _vector(kind)
        return (element, self._write(f"extractelement {kind} {value}, i32 {lane}")) if count else (kind, value)

    def _call(self, name: str, flags: str, kind: str, intrinsic: str, told: str) -> None:
        """A call of an intrinsic, lane by lane where its result is a vector."""
        lanes, element = _vector(kind)
        given = _operands(told)
        if not lanes:
            self._single(name, flags, kind, intrinsic, given)
            return
        single, result = re.sub(rf"\.v{lanes}(?=[a-z]+\d+)", ".", intrinsic), "undef"
        for lane in range(lanes):
            own = self._single("", flags, element, single, [self._lane(*operand, lane) for operand in given])
            text = f"insertelement {kind} {result}, {element} {own}, i32 {lane}"
            result = self._write(text, name if lane == lanes - 1 else "")

    def _single(self, name: str, flags: str, kind: str, intrinsic: str, given: _Operands) -> str:
        """A call whose result, if any, is no vector."""
        base = intrinsic.split(".")[1]
        if intrinsic.startswith(_ANY):
            return self._any(name, *given[0])
        if intrinsic.startswith(_MMA):
            return self._product(name, kind, intrinsic.removeprefix(_MMA), given)
        if intrinsic in _REGISTERS:
            return self._write(f'call {kind} asm "mov.u32 $0, %{_REGISTERS[intrinsic]};", "=r"()', name)
        if base in _COMPARED:
            (_, x), (_, y) = given
            truth = self._write(f"icmp {_COMPARED[base]} {kind} {x}, {y}")
            return self._write(f"select i1 {truth}, {kind} {x}, {kind} {y}", name)
        if base in _TOWARDS_NAN:
            (_, x), (_, y) = given
            number = self._single("", flags, kind, intrinsic.replace(base, _TOWARDS_NAN[base]), given)
            total, truth = self._write(f"fadd {kind} {x}, {y}"), self._write(f"fcmp uno {kind} {x}, {y}")
            return self._write(f"select i1 {truth}, {kind} {total}, {kind} {number}", name)
        if base in _SATURATED:
            return self._saturated(name, kind, base, *given[0])
        if intrinsic == _BARRIER:
            intrinsic, given = "llvm.nvvm.barrier0", []
        intrinsic = _NAMED.get(intrinsic, intrinsic)
        self.declared[intrinsic] = f'declare {kind} @"{intrinsic}"({", ".join(what for what, _ in given)})'
        call = f'call {flags}{kind} @"{intrinsic}"({", ".join(f"{what} {value}" for what, value in given)})'
        if kind == "void":
            self.lines.append(f"  {call}")
            return ""
        return self._write(call, name)

    def _saturated(self, name: str, kind: str, base: str, source: str, x: str) -> str:
        """A float as an integer of its range; NaN is 0, which PTX's conversions to 64 bits do not see to."""
        word, long, less, greater = _SATURATED[base]
        bits, signed = int(kind[1:]), base == "fptosi"
        wide = f"i{max(bits, 32)}"
        conversion = f"llvm.nvvm.{source[0]}2{long if bits == 64 else word}.rz"
        whole = self._single("", "", wide, conversion, [(source, x)])
        if bits < 32:
            top = (1 << bits - signed) - 1
            for limit, beyond in ((top, greater), *(((-top - 1, less),) if signed else ())):
                outside = self._write(f"icmp {beyond} {wide} {whole}, {limit}")
                whole = self._write(f"select i1 {outside}, {wide} {limit}, {wide} {whole}")
            whole = self._write(f"trunc {wide} {whole} to {kind}")
        number = self._write(f"fcmp ord {source} {x}, {x}")
        return self._write(f"select i1 {number}, {kind} {whole}, {kind} 0", name)

    def _any(self, name: str, kind: str, value: str) -> str:
        """The bits that any lane has."""
        lanes, element = _vector(kind)
        result = "0"
        for lane in range(lanes):
            part = self._lane(kind, value, lane)[1]
            result = self._write(f"or {element} {result}, {part}", name if lane == lanes - 1 else "")
        return result

    def _product(self, name: str, kind: str, words: str, given: _Operands) -> str:
        """A product of tensor cores as PTX; its operands are words and sums, of which its result is a struct."""
        shape, _, types = words.partition(".row.col.")
        parts = types.split(".")
        whole = _MULTIPLIED.get(types) or (types if len(parts) == 4 else f"s32.{parts[0]}.{parts[-1]}.s32")
        told = []
        for what, value in given:
            word = self._write(f"bitcast {what} {value} to i32") if _vector(what)[0] else value
            told.append(f"{'i32' if _vector(what)[0] else what} {word}")
        sums = len(_SUM.findall(kind))
        groups, number = [], 0
        for count in (sums, len(given) - sums - 2, 2, sums):
            groups.append("{" + ", ".join(f"${k}" for k in range(number, number + count)) + "}")
            number += count
        held = "f" if "float" in kind else "r"
        ties = ",".join([*[f"={held}"] * sums, *["r"] * (len(given) - sums), *[held] * sums])
        text = f"mma.sync.aligned.{shape}.row.col.{whole} {', '.join(groups)};"
        return self._write(f'call {kind} asm "{text}", "{ties}"({", ".join(told)}) convergent', name)
