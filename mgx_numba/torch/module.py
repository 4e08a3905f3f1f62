"""``MGXModule``: a compiled program as a module of PyTorch's, under torch_migraphx's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..api.loading import load_buffer
from ..api.program import program
from ..api.quantization import quantize_bf16, quantize_fp16
from ..api.saving import save_buffer
from ..api.shape import shape
from ..errors import MgxError, OptionError, ParameterError
from .region import Lowered, runner

Order = "Sequence[int] | None"


class MGXModule(torch.nn.Module):
    """A program that is called like a module; it has no parameters of its own.

    ``torch.save`` keeps the whole module, ``state_dict`` the program and all else that `load_state_dict` of an empty
    ``MGXModule()`` needs.

    Args:
        program: the program; it is compiled if it is not.
        input_names: the program's inputs in the order of the module's; None: in the program's order.
        output_names: names of the results, for callers; None: the program's.
        quantize_fp16, quantize_bf16: quantise the program before it is compiled.
        exhaustive_tune: as of ``program.compile``.
        enable_par_conversion: without effect: results need no conversion.
        target: what an uncompiled program is compiled for.
        on_device: inputs and results are tensors on a CUDA device.
        input_orders, output_orders: orders of axes in which tensors become inputs, and results tensors, as
            `torch.permute` takes them; None: all as they are.
    """

    def __init__(
        self,
        program: program | None = None,
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
        quantize_fp16: bool = False,
        quantize_bf16: bool = False,
        exhaustive_tune: bool = False,
        enable_par_conversion: bool = False,
        *,
        target: str = "cpu",
        on_device: bool = False,
        input_orders: Sequence[Sequence[int] | None] | None = None,
        output_orders: Sequence[Sequence[int] | None] | None = None,
    ) -> None:
        super().__init__()
        for argument, names in (("input_names", input_names), ("output_names", output_names)):
            if names is not None and not (_is_sequence(names) and all(isinstance(name, str) for name in names)):
                raise ParameterError(f"{argument} must be a sequence of names, got {names!r}")
        check_flags(quantize_fp16=quantize_fp16, quantize_bf16=quantize_bf16, exhaustive_tune=exhaustive_tune)
        check_flags(enable_par_conversion=enable_par_conversion, on_device=on_device)
        self.program = program
        self.input_names = None if input_names is None else list(input_names)
        self.output_names = None if output_names is None else list(output_names)
        self.quantize_fp16, self.quantize_bf16 = quantize_fp16, quantize_bf16
        self.exhaustive_tune, self.enable_par_conversion = exhaustive_tune, enable_par_conversion
        self.target, self.on_device = target, on_device
        self.input_orders, self.output_orders = input_orders, output_orders
        if program is not None:
            self._prepare(program)

    @classmethod
    def of(cls, lowered: Lowered) -> MGXModule:
        """Return the module of a compiled graph, whose inputs are those of the program, in the graph's order."""
        return cls(
            lowered.program,
            [name for name, _, _ in lowered.inputs],
            target=lowered.target,
            on_device=lowered.on_device,
            input_orders=[order for _, _, order in lowered.inputs],
            output_orders=lowered.results,
        )

    def _prepare(self, made: program) -> None:
        """Compile the program if it is not, and find out about inputs and results."""
        if not isinstance(made, program):
            raise ParameterError(f"MGXModule takes a program, got {type(made).__name__}: see from_torch")
        if not made.is_compiled():
            if self.quantize_fp16:
                quantize_fp16(made)
            if self.quantize_bf16:
                quantize_bf16(made)
            made.compile(self.target, offload_copy=not self.on_device, exhaustive_tune=self.exhaustive_tune)
        known = [name for name in made.get_parameter_names() if "#output_" not in name]
        self.input_names = known if self.input_names is None else self.input_names
        if sorted(self.input_names) != sorted(known):
            raise ParameterError(f"input_names are {', '.join(self.input_names)}; the program has {', '.join(known)}")
        given = made.get_output_names()
        self.output_names = given if self.output_names is None else self.output_names
        if len(self.output_names) != len(given):
            names = ", ".join(self.output_names)
            raise ParameterError(f"output_names are {names}; the number of results is {len(given)}")
        self.input_orders = [None] * len(known) if self.input_orders is None else self.input_orders
        self.output_orders = [None] * len(given) if self.output_orders is None else self.output_orders
        shapes = made.get_parameter_shapes()
        _check_orders("input_orders", self.input_orders, self.input_names, [shapes[n] for n in self.input_names])
        _check_orders("output_orders", self.output_orders, self.output_names, made.get_output_shapes())
        self._run: Any = None

    def forward(self, *inputs: object) -> Any:
        """Run the program; one result is returned alone, several as a tuple.

        Raises:
            MgxError: the module has no program.
            ParameterError: there are more or fewer inputs than the program has, or one does not fit.
        """
        if self.program is None or self.input_names is None:
            raise MgxError("MGXModule has no program: load_state_dict, or pass one")
        if len(inputs) != len(self.input_names):
            raise ParameterError(f"{len(self.input_names)} inputs are expected, got {len(inputs)}")
        if self._run is None:
            assert self.input_orders is not None and self.output_orders is not None
            named = [(n, k, order) for k, (n, order) in enumerate(zip(self.input_names, self.input_orders))]
            self._run = runner(Lowered(self.program, named, self.output_orders, self.target, self.on_device), inputs)
        results = self._run(inputs)
        return results[0] if len(results) == 1 else tuple(results)

    def get_extra_state(self) -> dict[str, object]:
        """Return what `state_dict` holds: the program as a tensor of bytes, and the attributes of this module."""
        if self.program is None:
            raise MgxError("MGXModule has no program that could be saved")
        data = torch.frombuffer(bytearray(save_buffer(self.program)), dtype=torch.uint8)
        return {"program": data, **{name: getattr(self, name) for name in _KEPT}}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take what `get_extra_state` has returned.

        Raises:
            ParameterError: the state is of another module.
        """
        lacking = {"program", *_KEPT} - set(state if isinstance(state, dict) else ())
        if lacking:
            raise ParameterError(f"the state of an MGXModule is expected; it lacks {', '.join(sorted(lacking))}")
        for name in _KEPT:
            setattr(self, name, state[name])
        self.program = load_buffer(state["program"].numpy().tobytes())
        self._prepare(self.program)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_run": None}


def check_flags(**flags: object) -> None:
    """Check that arguments are bools.

    Raises:
        OptionError: one is not; the message names it.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise OptionError(f"{name} must be True or False, got {value!r}")


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_permutation(order: object, rank: int) -> bool:
    return _is_sequence(order) and sorted(map(repr, order)) == sorted(map(repr, range(rank)))  # type: ignore[call-overload]


def _check_orders(argument: str, orders: Any, names: Sequence[str], shapes: Sequence[shape]) -> None:
    """Check that ``orders`` has a permutation of the axes, or None, for each input or result."""
    fits = _is_sequence(orders) and len(orders) == len(names)
    if not fits or not all(order is None or _is_permutation(order, s.ndim()) for order, s in zip(orders, shapes)):
        raise ParameterError(f"{argument} must have a permutation of axes, or None, for each of {names}")


_KEPT = (
    "input_names",
    "output_names",
    "quantize_fp16",
    "quantize_bf16",
    "exhaustive_tune",
    "enable_par_conversion",
    "target",
    "on_device",
    "input_orders",
    "output_orders",
)
