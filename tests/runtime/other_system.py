"""Run a small program as Python of another operating system would: `python -m tests.runtime.other_system SYSTEM`.

What that system lacks is taken away before the package is imported: functions of ``os``, ``mmap`` and ``signal``,
modules, ``/proc`` and ``/sys``. For ``darwin`` kernels are compiled for Apple's triple; its calling convention is
Linux's on x86-64, so they run here. For ``win32`` they are Linux's, and functions of Windows are Linux counterparts.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import io
import mmap
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba.core.registry  # all imports of others are before `pretend`
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LINUX = {
    os: "copy_file_range eventfd memfd_create posix_fadvise posix_fallocate preadv pwritev O_TMPFILE sched_getaffinity "
    "sched_setaffinity",
    mmap: "MADV_HUGEPAGE MADV_NOHUGEPAGE MAP_POPULATE MAP_NORESERVE MAP_STACK",
}
POSIX = {
    os: "chown fchmod fchown fork forkpty getegid geteuid getgid getloadavg getpgid getuid killpg nice O_CLOEXEC "
    "O_DIRECTORY O_NOFOLLOW O_NONBLOCK pipe2 pread pwrite register_at_fork sched_yield setpgid setsid statvfs sync "
    "sysconf uname",
    mmap: "MAP_ANON MAP_ANONYMOUS MAP_PRIVATE MAP_SHARED PROT_EXEC PROT_READ PROT_WRITE",
    signal: "pthread_sigmask setitimer SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGQUIT SIGUSR1 SIGUSR2",
}
"""Names that are missing outside of Linux, and on Windows besides."""
MODULES = "fcntl grp pwd resource termios"
COUNTERPARTS = {"SwitchToThread": "sched_yield", "Sleep": "usleep"}


class _WindowsLibrary:
    def __getattr__(self, name: str) -> Any:
        return getattr(_load_library(None), COUNTERPARTS.get(name, name))


_load_library = ctypes.CDLL


def _library(name: str | None) -> Any:
    if name is None:
        raise TypeError("bad argument type for built-in operation")
    return _WindowsLibrary()


def pretend(system: str) -> None:
    """Take away what ``system`` lacks."""
    assert numba.core.registry.cpu_target
    for names in (LINUX, POSIX) if system == "win32" else (LINUX,):
        for module, text in names.items():
            for name in filter(lambda name: hasattr(module, name), text.split()):
                delattr(module, name)
    if system == "win32":
        sys.modules.update(dict.fromkeys(MODULES.split()))
        ctypes.CDLL = _library
        shutil._use_fd_functions = False  # type: ignore[attr-defined]  # as the module finds on Windows
    else:
        architecture = llvm.get_process_triple().split("-")[0]
        llvm.get_process_triple = lambda: f"{architecture}-apple-darwin23.4.0"
    opened = builtins.open

    def refusing(path: Any, *given: Any, **options: Any) -> Any:
        if str(path).startswith(("/proc", "/sys")):
            raise FileNotFoundError(path)
        return opened(path, *given, **options)

    builtins.open = io.open = refusing
    sys.platform = system


def run() -> None:
    """Parse a file, compile, run on two threads, save, load and run; then the driver."""
    import mgx_numba
    from mgx_numba.codegen.cpu import host
    from mgx_numba.driver.main import main

    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((64, 48)).astype(np.float32), rng.standard_normal((300, 64)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Softmax", ["m"], ["y"])]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, x.shape)], [info("y", TensorProto.FLOAT, [300, 48])],
        [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        file, saved = Path(folder, "model.onnx"), Path(folder, "model.mxr")
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), file)
        program = mgx_numba.parse_onnx(str(file))
        expected = np.array(program.clone().compile("ref").run({"x": x})[0])
        program.compile("cpu", num_threads=2)
        program.save(str(saved))
        for compiled in (program, mgx_numba.load(str(saved))):
            for _ in range(3):
                np.testing.assert_allclose(np.array(compiled.run({"x": x})[0]), expected, rtol=1e-4, atol=1e-6)
        with contextlib.redirect_stdout(io.StringIO()):
            for command in (["perf", str(saved), "-n", "2"], ["verify", str(file)], ["params", str(file)]):
                assert main(command) == 0, command
    print(sys.platform, host.triple())


if __name__ == "__main__":
    pretend(sys.argv[1])
    run()
