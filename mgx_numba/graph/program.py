"""Programs: a main module and the submodules that its instructions run; the portable form of a model."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from ..core.shape import Shape
from ..errors import ValidationError
from .allowance import Allowance
from .instruction import Instruction, Results, Return
from .module import Module
from .origin import Origin
from .rewrite_log import RewriteLog


class Program:
    """The portable form of a model: it is printed, saved, verified and compiled for a target.

    Attributes:
        allowance: budget for constants that are computed before the program runs.
        open_dims: open axes of the inputs to which the reader gave a length: symbol (or "") by axis, by input. Error
            messages name them.
        defaults: shapes of constants that the model also declares as inputs, by name; ONNX lets a run override their
            values. A reader fills the map; clones and files have none.
        origin: metadata of the model's file, including the results' names.
        log: rewrites that passes and lowering applied or refused; a clone begins with none.
        is_body: whether the program stands for a submodule: its inputs are not a model's inputs.
    """

    def __init__(self) -> None:
        self.allowance = Allowance(lambda: self.modules)
        self._modules: dict[str, Module] = {"main": Module("main", self.allowance)}
        self.open_dims: dict[str, dict[int, str]] = {}
        self.defaults: dict[str, Shape] = {}
        self.origin = Origin()
        self.log = RewriteLog()
        self.is_body = False
        self._taken: dict[str, int] = {}
        self.only_bodies: tuple[int, ...] = ()
        """`Module.changes` of all modules when all but the main one were found to be bodies of kernels."""

    @property
    def main(self) -> Module:
        """The main module."""
        return self._modules["main"]

    @property
    def modules(self) -> list[Module]:
        """All modules, main first, then in order of creation."""
        return list(self._modules.values())

    @property
    def module_count(self) -> int:
        """Number of modules."""
        return len(self._modules)

    def remove_modules_since(self, count: int) -> None:
        """Remove the modules created after there were ``count`` modules, provided that none was removed since."""
        for module in list(islice(reversed(self._modules.values()), max(0, len(self._modules) - count))):
            if self._modules.get(module.name) is module:  # not yet removed with the instruction that runs it
                self.remove_module(module)

    def create_module(self, name: str) -> Module:
        """Create an empty module.

        Raises:
            ValidationError: the name is taken, or no string.
        """
        if not isinstance(name, str):
            raise ValidationError(f"the name of a module must be a string, got {name!r}")
        if name in self._modules:
            raise ValidationError(f"program already has a module {name!r}")
        module = Module(name, self.allowance)
        self._modules[name] = module
        return module

    def adopt(self, module: Module) -> None:
        """Add a module of another program, and the modules that it runs, to this program; the other one shares them.

        Raises:
            ValidationError: a module's name is taken.
        """
        adopted = (module, *module.submodules())
        for one in adopted:
            if self._modules.get(one.name, one) is not one:
                raise ValidationError(f"program already has a module {one.name!r}")
        for one in adopted:
            self._modules[one.name] = one
            one.allowance = self.allowance

    def unique_module(self, stem: str) -> Module:
        """Create an empty module named ``stem`` plus the first free number."""
        number = self._taken.get(stem, 0)
        while f"{stem}{number}" in self._modules:
            number += 1
        self._taken[stem] = number + 1
        return self.create_module(f"{stem}{number}")

    def module(self, name: str) -> Module | None:
        """Return the module of this name, or ``None``."""
        return self._modules.get(name)

    def reachable_modules(self) -> list[Module]:
        """Return the main module and the submodules in use, in order of first use."""
        return [self.main, *self.main.submodules()]

    def remove_module(self, module: Module) -> None:
        """Remove a module that no instruction runs, with its instructions and the submodules that only they run."""
        for ins in reversed(list(module)):
            bodies = dict.fromkeys(ins.module_args)
            module.remove_instruction(ins)
            for body in bodies:  # before the instructions whose values they capture
                if not body.is_run and body.name in self._modules:
                    self.remove_module(body)
        del self._modules[module.name]

    def remove_unused_modules(self) -> None:
        """Remove modules that no instruction runs."""
        used = {id(m) for m in self.reachable_modules()}
        self._modules = {name: m for name, m in self._modules.items() if id(m) in used}
        self._taken.clear()

    def parameter_shapes(self) -> dict[str, Shape]:
        """Return the shapes of the inputs by name, in order of declaration."""
        return {ins.op.parameter: ins.shape for ins in self.main.parameters()}  # type: ignore[attr-defined]

    def output_shapes(self) -> list[Shape]:
        """Return the shapes of the results."""
        return [ins.shape for ins in self.main.results()]

    def copy_metadata(self, other: Program) -> None:
        """Copy another program's metadata: everything except instructions and log."""
        self.open_dims = {name: dict(axes) for name, axes in other.open_dims.items()}
        self.origin = other.origin
        self.is_body = other.is_body

    def sort(self) -> None:
        """Order every module's instructions topologically."""
        for module in self.modules:
            module.sort()

    def clone(self) -> Program:
        """Return a copy with its own modules and instructions; literals share memory.

        Raises:
            ValidationError: an instruction takes a value of another program, or one that comes after it.
        """
        copy = Program()
        copy.copy_metadata(self)
        copy.append_copies(self, {})
        return copy

    def append_copies(
        self, source: Program, mapped: dict[Instruction, Instruction], kept: Collection[Instruction] | None = None
    ) -> None:
        """Append copies of another program's instructions, with the submodules that they run.

        Args:
            source: the other program; literals share memory.
            mapped: the copies by original, to which the new copies are added. An original that has one is not copied.
            kept: the instructions of the main module to copy; None: all.

        Raises:
            ValidationError: an instruction takes a value that has no copy before it.
        """
        modules: dict[int, Module] = {id(source.main): self.main}
        run = None if kept is None else {id(m) for ins in kept for b in ins.module_args for m in (b, *b.submodules())}
        for module in [*source.modules, *source.reachable_modules()]:
            if id(module) not in modules and (run is None or id(module) in run):
                taken = module.name in self._modules
                modules[id(module)] = self.unique_module(module.name) if taken else self.create_module(module.name)
        for module in source._outer_first():
            target = modules.get(id(module))
            if target is None:
                continue
            chosen = module if kept is None or module is not source.main else [ins for ins in module if ins in kept]
            for ins in chosen:
                if ins not in mapped:
                    mapped[ins] = _copied(ins, target, mapped, modules)
            target._parameters = max(target._parameters, module._parameters)

    @classmethod
    def of_module(cls, module: Module) -> tuple[Program, list[Instruction]]:
        """Copy a submodule into a program of its own; return the program and the outer values that the submodule
        captures.

        The program's parameters are the submodule's, in order, then one for each captured value. Captured literals are
        copied instead.

        Raises:
            ValidationError: an instruction takes a value that comes after it.
        """
        copy = cls()
        copy.is_body = True
        mapped: dict[Instruction, Instruction] = {}
        for k, parameter in enumerate(module.parameters()):
            mapped[parameter] = copy.main.add_parameter(f"p{k}", parameter.shape)
        captured: list[Instruction] = []
        for value in module.captured():
            if value.literal is not None:
                mapped[value] = copy.main.add_literal(value.literal)
            else:
                mapped[value] = copy.main.add_parameter(f"outer{len(captured)}", value.shape)
                captured.append(value)
        modules = {id(module): copy.main}
        for inner in module.submodules():
            modules[id(inner)] = copy.create_module(inner.name)
        for source in [module, *module.submodules()]:
            target = modules[id(source)]
            for ins in source:
                if ins not in mapped:
                    mapped[ins] = _copied(ins, target, mapped, modules)
            if source is not module:
                target._parameters = source._parameters
        return copy, captured

    def _outer_first(self) -> list[Module]:
        """Return the modules, outer modules first, so that captured values are copied before their uses."""
        seen: dict[int, Module] = {id(m): m for m in self.reachable_modules()}
        for module in self.modules:
            seen.setdefault(id(module), module)
        return list(seen.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and str(self) == str(other)

    __hash__ = object.__hash__

    def __str__(self) -> str:
        from .printer import print_program

        return print_program(self)


def _copied(
    ins: Instruction, target: Module, mapped: dict[Instruction, Instruction], modules: dict[int, Module]
) -> Instruction:
    """Append to ``target`` a copy of an instruction on the copies of its inputs."""
    owner = ins.module
    assert owner is not None
    inputs = [_twin(mapped, i, ins, owner) for i in ins.inputs]
    if isinstance(ins.op, Return):
        twin: Instruction = Results(inputs)
    else:
        twin = Instruction(ins.op, inputs, ins.shape, [modules[id(m)] for m in ins.module_args], ins.literal)
    twin.debug_symbols, twin.normalized, twin.target_id = ins.debug_symbols, ins.normalized, ins.target_id
    twin.place = ins.place
    return target._link(twin, None)


def _twin(mapped: dict[Instruction, Instruction], value: Instruction, user: Instruction, module: Module) -> Instruction:
    try:
        return mapped[value]
    except KeyError:
        raise ValidationError(
            f"module {module.name!r}: {user.name} takes {value!r}, which is of another program or comes after it"
        ) from None
