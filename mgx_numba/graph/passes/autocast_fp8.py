"""Make float8 inputs and results of a program float32, with conversions inside."""

from __future__ import annotations

from ...core.types import Type
from ..module import Module
from ..program import Program
from .base import Options, Pass

FLOAT8 = frozenset({Type.fp8e4m3fn_type, Type.fp8e4m3fnuz_type, Type.fp8e5m2_type, Type.fp8e5m2fnuz_type})


class AutocastFp8(Pass):
    """``@param: fp8 -> convert[fp8](@param: float)``, and ``@return(x: fp8) -> @return(convert[float](x))``."""

    name = "autocast_fp8"

    def run(self, program: Program, options: Options) -> None:
        """Rewrite the main module, the only module with inputs and results."""
        self.apply(program, program.main, options)

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for parameter in module.parameters():
            kind = parameter.shape.type
            if kind not in FLOAT8:
                continue
            users = {user: list(places) for user, places in parameter.users.items()}
            parameter.shape = parameter.shape.with_type(Type.float_type)
            following = next((i for i in module if i.inputs), None)
            narrow = module.insert_instruction(following, "convert", [parameter], target_type=kind)
            for user, places in users.items():
                (user.module or module).set_inputs(user, dict.fromkeys(places, narrow))
        results = module.results()
        if any(r.shape.type in FLOAT8 for r in results):
            module.replace_return([
                module.add_instruction("convert", [r], target_type=Type.float_type) if r.shape.type in FLOAT8 else r
                for r in results
            ])  # fmt: skip
