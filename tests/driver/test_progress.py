"""Progress is shown only on a terminal, with and without ``rich``."""

from __future__ import annotations

import errno
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import mgx_numba
from mgx_numba.driver.commands import COMMANDS
from mgx_numba.driver.main import main
from mgx_numba.progress import Screen, shown_progress, track


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


KINDS = pytest.mark.parametrize("kind", ["plain", "rich"])


def watch(kind: str, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Let a person watch standard error, with ``rich`` installed or not."""
    if kind == "rich":
        pytest.importorskip("rich")
    else:
        for name in ("rich", "rich.console", "rich.progress"):
            monkeypatch.setitem(sys.modules, name, None)
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


@KINDS
def test_terminal_shows_progress(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watch(kind, monkeypatch)
    assert list(track(range(5), 5, "Counting")) == [0, 1, 2, 3, 4]
    assert "Counting" in terminal.getvalue()


@KINDS
def test_terminal_shows_compilation(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watch(kind, monkeypatch)
    with shown_progress("compiling") as show:
        assert show is not None
        show(1, 3, "mul_add_kernel")
        show(3, 3, "conv_relu_kernel")
    assert "conv_relu_kernel" in terminal.getvalue()


@KINDS
def test_lines_that_are_logged_meanwhile_do_not_mix_with_progress(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watch(kind, monkeypatch)
    with shown_progress("compiling") as show:
        assert show is not None
        show(1, 3, "mul_add_kernel")
        Screen().write("a message\n")
        show(2, 3, "mul_add_kernel")
    lines = [line.rpartition("\r")[2] for line in terminal.getvalue().split("\n")]
    assert any(line.removeprefix("\x1b[2K") == "a message" for line in lines), lines


def test_a_process_without_standard_error_compiles(tmp_path: Path) -> None:
    code = (
        "import sys; assert sys.stderr is None; import mgx_numba as m; p = m.program(); g = p.get_main_module();"
        "x = g.add_parameter('x', m.shape(type='float', lens=[2]));"
        "g.add_return([g.add_instruction(m.op('neg'), [x])]);"
        "p.compile(m.get_target('cpu')); print('done')"
    )
    found = subprocess.run(
        ["sh", "-c", f'{shlex.quote(sys.executable)} -c "$CODE" 2>&-'],
        capture_output=True,
        text=True,
        env={**os.environ, "CODE": code},
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert found.stdout == "done\n"
    assert _driver("onnx -l", "2>&-").returncode == 0


def test_pipe_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(track(range(3), 3, "Counting")) == [0, 1, 2]
    with shown_progress("compiling") as show:
        assert show is None
    assert stream.getvalue() == ""


def _driver(words: str, output: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The driver's process, its standard output redirected by a shell."""
    command = f"{shlex.quote(sys.executable)} -m mgx_numba {words} {output}"
    settings = {**os.environ, **environment}
    folder = Path(__file__).parents[2]
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=settings, cwd=folder, timeout=120)


def test_letters_that_the_output_lacks_ended_in_a_traceback(tmp_path: Path) -> None:
    program = mgx_numba.program()
    main = program.get_main_module()
    main.add_return([main.add_parameter("\u00fc", mgx_numba.shape(type="float", lens=[2]))])
    program.save(tmp_path / "model.mxr")
    found = _driver(f"read {tmp_path}/model.mxr", "", PYTHONIOENCODING="ascii")
    assert found.returncode == 0 and "\\xfc = @param:\\xfc -> float_type" in found.stdout


def test_output_that_cannot_be_written_ended_in_a_traceback() -> None:
    found = _driver("onnx -l", ">/dev/full")
    assert found.returncode == 2 and "error: standard output: No space left on device" in found.stderr
    assert "Traceback" not in found.stderr and "Exception" not in found.stderr
    closed = _driver("onnx -l", ">&-")
    assert closed.returncode == 0 and "Traceback" not in closed.stderr


def test_an_error_of_the_system_that_is_not_of_writing_names_no_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(args: object) -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(COMMANDS["onnx"], "run", fails)
    assert main(["onnx", "-l"]) == 2
    assert capsys.readouterr().err.endswith("error: [Errno 12] Cannot allocate memory\n")


def test_reader_that_leaves_early_is_no_error() -> None:
    code = "import sys; from mgx_numba.driver.main import main; sys.exit(main(['onnx', '-l']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err
