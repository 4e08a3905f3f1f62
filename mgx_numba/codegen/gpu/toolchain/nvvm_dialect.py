"""Translate llvmlite's LLVM IR to the dialect of NVIDIA's libNVVM.

Below compute capability 10 libNVVM reads LLVM 7 IR, and always only scalar intrinsics: NVVM IR Specification,
"Introduction" and "Intrinsic functions". Each line of llvmlite's text is one instruction or declaration.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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
"""-0 by type in LLVM's notation; float is written with double's digits."""
_COMPARED = {"smin": "slt", "smax": "sgt", "umin": "ult", "umax": "ugt"}
"""Integer predicates of minimum and maximum intrinsics."""
_TOWARDS_NAN = {"minimum": "minnum", "maximum": "maxnum"}
"""Intrinsics that return the other operand if one is NaN; PTX's instruction orders signed zeros, too."""
_NAMED = {"llvm.nvvm.ex2.approx.ftz.f32": "llvm.nvvm.ex2.approx.ftz.f"}
_BARRIER = "llvm.nvvm.barrier.cta.sync.aligned.all"
_SATURATED = {"fptosi": ("i", "ll", "slt", "sgt"), "fptoui": ("ui", "ull", "ult", "ugt")}
"""Name parts of saturating conversions to 32 and 64 bits, and the integer predicates of clamping."""
_REGISTERS = {"llvm.nvvm.read.ptx.sreg.cluster.ctarank": "%cluster_ctarank"}
_ANY = "llvm.vector.reduce.or."
_MMA = "llvm.nvvm.mma."
_MULTIPLIED = {"f32.f32": "f32.f16.f16.f32", "bf16": "f32.bf16.bf16.f32", "tf32": "f32.tf32.tf32.f32"}
"""PTX types (accumulator, a, b, accumulator) by suffix of LLVM's MMA names. An integer suffix "s8" or "s8.u8" stands
for both operands; other names have all four types."""
_SUM = re.compile(r"float|i32")

_Operands = Sequence[tuple[str, str]]


def nvvm_text(text: str) -> str:
    """Return the module in libNVVM's dialect. Constructs without an equivalent are kept; libNVVM rejects them by
    name."""
    unit = _Unit()
    for line in text.splitlines():
        unit.add(line)
    return "\n".join([*unit.lines, *unit.declared.values()]) + "\n"


def _vector(kind: str) -> tuple[int, str]:
    """Return the lanes (0 for a scalar) and the element type."""
    found = _VECTOR.fullmatch(kind)
    return (int(found[1]), found[2]) if found else (0, kind)


def _spread(line: str) -> str:
    """Return the line with splat constants written out; their type is that of the last vector before them."""

    def written(found: re.Match[str]) -> str:
        element, value = found.groups()
        lanes = [n for n, kind in _VECTOR.findall(line[: found.start()]) if kind == element][-1]
        return f"<{', '.join([f'{element} {value.strip()}'] * int(lanes))}>"

    return _SPLAT.sub(written, line)


def _operands(text: str) -> list[tuple[str, str]]:
    """Return (type, value) of each operand of a call."""
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
    """A module during translation.

    Attributes:
        lines: translated text without declarations of intrinsics.
        declared: declarations of called intrinsics, by name.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self._count = 0

    def add(self, line: str) -> None:
        """Translate a line."""
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
        """Append an instruction; return the name of its result."""
        if not name:
            self._count += 1
            name = f'%"nvvm.{self._count}"'
        self.lines.append(f"  {name} = {text}")
        return name

    def _lane(self, kind: str, value: str, lane: int) -> tuple[str, str]:
        """Return an element of a vector, or a scalar itself, as an operand."""
        count, element = _vector(kind)
        return (element, self._write(f"extractelement {kind} {value}, i32 {lane}")) if count else (kind, value)

    def _call(self, name: str, flags: str, kind: str, intrinsic: str, told: str) -> None:
        """Translate a call of an intrinsic, lane by lane for vectors."""
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
        """Translate a call with a scalar or void result."""
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
        """Translate a saturating float-to-integer conversion. NaN gives 0, which PTX's 64-bit conversions do not
        ensure."""
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
        """Translate the bitwise or of all lanes."""
        lanes, element = _vector(kind)
        result = "0"
        for lane in range(lanes):
            part = self._lane(kind, value, lane)[1]
            result = self._write(f"or {element} {result}, {part}", name if lane == lanes - 1 else "")
        return result

    def _product(self, name: str, kind: str, words: str, given: _Operands) -> str:
        """Translate an MMA to inline PTX; operands are words and accumulators, the result is a struct."""
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
