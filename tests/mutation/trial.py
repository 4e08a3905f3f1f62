"""A process that loads mutated files one after the other and reports the outcome of each.

``python -m tests.mutation.trial EXAMPLES SEED FIRST LAST`` writes a line ``index outcome`` for each file. It ends
itself when one takes longer than the limit, and memory beyond twice the file and a constant, code that is executed, or
an exception of another kind count as failures, which are written with their traceback.
"""

from __future__ import annotations

import faulthandler
import gc
import random
import resource
import sys
import tempfile
import traceback
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mgx_numba as migraphx
from mgx_numba import dataclass as dataclass_module
from mgx_numba.codegen.embedding import EmbeddedStore
from mgx_numba.errors import FormatError, MgxError
from mgx_numba.graph import wire
from mgx_numba.graph.mxr import OBJECTS, load_buffer, load_program, save_buffer
from mgx_numba.graph.program import Program
from mgx_numba.graph.validate import validate
from mgx_numba.runtime.cpu import executor
from tests.mutation.examples import LONGEST_BIN
from tests.mutation.mutate import mutate

LIMIT_SECONDS = 20
MEMORY_BYTES = 4 << 20
"""Memory that loading may take beyond twice the file; compiling its program up to code generation may take four times
that."""
ADDRESS_BYTES = 512 << 20
"""Address space beyond what the warmed-up process has, so that a wild allocation fails instead of the machine."""

_EXECUTING = ("exec", "compile", "import", "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen")
_EXECUTING += ("ctypes.dlopen", "socket.connect", "os.remove", "os.rename", "shutil.rmtree", "marshal.loads")


class CodeGeneration(BaseException):
    """Loading came to where kernels are built, so the file is right as far as this test goes."""


class Executed(Exception):
    """Code was executed while a file was loaded."""


class Trial:
    """A series of mutated files of one seed, checked in this process."""

    def __init__(self, examples: Path, seed: int, folder: Path) -> None:
        self._examples = sorted(examples.iterdir())
        self._seed = seed
        self._path = folder / "file"
        self._watching = False
        self._events: list[str] = []

    def prepare(self) -> None:
        """Make this process one for trials: nothing is compiled or run, and it cannot be undone."""
        executor.load = _stop  # type: ignore[attr-defined]
        wire.LONGEST_BIN = LONGEST_BIN
        sys.addaudithook(self._audit)
        for example in self._examples:  # imports what loading needs
            _parse(example, example.suffix[1:])
            _load(example, example.suffix[1:])
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + ADDRESS_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def mutated(self, index: int) -> tuple[bytes, str]:
        """File number ``index`` and its format."""
        rng = random.Random(f"{self._seed}:{index}")
        example = rng.choice(self._examples)
        form = example.suffix[1:]
        return mutate(example.read_bytes(), form == "json", rng), form

    def run(self, index: int) -> str:
        """``loaded``, ``refused`` or a failure with its traceback."""
        data, form = self.mutated(index)
        return self.check(data, form)

    def check(self, data: bytes, form: str, again: bool = False) -> str:
        """Check these bytes; see `run`."""
        self._path.write_bytes(data)
        try:
            found = self._guarded(len(data), MEMORY_BYTES, lambda: _parse(self._path, form), FormatError)
            self._guarded(len(data), 4 * MEMORY_BYTES, lambda: _load(self._path, form), MgxError)
            if found is None:
                return "refused"
            if load_buffer(save_buffer(found))[0] != found:
                return "failed: what was loaded is another program when it is saved and loaded again"
        except Executed as error:
            # the package imports a module when it first needs it; what a file has executed, it has executed again
            return f"failed: executed: {error}" if again else self.check(data, form, again=True)
        except Exception:
            return f"failed: {traceback.format_exc()}"
        return "loaded"

    def _guarded(self, size: int, constant: int, load: Callable[[], Any], refusal: type[Exception]) -> Any:
        """Return the result of ``load``, None if it refuses the file; raise for any other outcome."""
        gc.collect(0)
        self._events.clear()
        result = None
        tracemalloc.start()
        try:
            self._watching = True
            result = load()
        except refusal:
            pass
        finally:
            self._watching = False
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        if peak > 2 * size + constant:
            raise RuntimeError(f"{peak} bytes of memory for a file of {size}")
        if self._events:
            raise Executed(", ".join(self._events))
        return result

    def _audit(self, event: str, arguments: Any) -> None:
        if self._watching and event in _EXECUTING:
            caller = sys._getframe().f_back
            if caller is not None and caller.f_code is dataclass_module._written.__code__:
                return  # a method of a class of the package
            self._events.append(f"{event} {str(arguments)[:200]}")


def _parse(path: Path, form: str) -> Program:
    program, extra = load_program(path, form, with_objects=True)
    validate(program)
    if OBJECTS in extra:
        EmbeddedStore(extra[OBJECTS])
    return program


def _load(path: Path, form: str) -> None:
    try:
        migraphx.load(path, form)
    except CodeGeneration:
        pass


def _stop(*arguments: Any, **options: Any) -> None:
    raise CodeGeneration


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def main(examples: str, seed: int, first: int, last: int) -> None:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(examples), seed, Path(folder))
        trial.prepare()
        for index in range(first, last):
            faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
            print(index, trial.run(index).replace("\n", "\\n"), flush=True)
            faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    faulthandler.enable()
    main(sys.argv[1], *map(int, sys.argv[2:]))
