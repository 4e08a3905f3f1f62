"""Build what is released, and try it in new environments.

    python -m tools.release --out dist                       # sdist, pure wheel, kernels of all CPUs, their wheels
    python -m tools.release --out dist --kernels FOLDER      # the same with kernels that tools.prebuild has written
    python -m tools.release --out dist --pure                # without kernels
    python -m tools.release --out dist --kernels FOLDER python3.10 python3.13   # and try the wheels with these
    python -m tools.release --out dist --pure --numba 0.63.1,0.68.1 python3.12  # with each of these versions of Numba

Nothing but Python and git is needed; ``--out`` must be empty. Making kernels needs the extras ``bench`` and ``test``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.release.trial import CLEAN, new_environment, try_wheels
from tools.release.wheels import build_pure, check_contents, platform_wheel, usable

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python", nargs="*", help="interpreters with which the wheels are tried")
    parser.add_argument("--out", type=Path, required=True, help="folder for the distributions")
    parser.add_argument("--numba", default="", help="versions of Numba, by commas (default: the newest)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--kernels", type=Path, help="folder of the files that tools.prebuild has written")
    how.add_argument("--pure", action="store_true", help="build no wheels with kernels")
    given = parser.parse_args(arguments)
    out: Path = given.out.resolve()
    if out.exists() and any(out.iterdir()):
        parser.error(f"--out: {out} is not empty")
    for kernels in given.kernels.glob("*.kernels") if given.kernels else ():
        if not usable(kernels):
            parser.error(f"{kernels} has no kernels of this state of the kernel language: run python -m tools.prebuild")
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        builder = new_environment(sys.executable, Path(scratch, "build"))
        subprocess.run([builder, "-m", "pip", "install", "--quiet", "build"], check=True, env=CLEAN)
        source, pure = build_pure(str(builder), out, CLEAN)
        check_contents(source, pure)
        print(f"{source.name}, {pure.name}", flush=True)
        folder = given.kernels
        if folder is None and not given.pure:
            folder = Path(scratch, "kernels")
            subprocess.run([sys.executable, "-m", "tools.prebuild", "--out", str(folder)], check=True)
        for kernels in sorted(folder.glob("*.kernels")) if folder else ():
            made = platform_wheel(pure, kernels)
            print(f"{made.name}, {made.stat().st_size / 1e6:.1f} MB", flush=True)
        trials = [(python, numba) for python in given.python for numba in given.numba.split(",")]
        for number, (python, numba) in enumerate(trials):
            home = Path(scratch, f"try-{number}")
            home.mkdir()
            try:
                print("\n".join(try_wheels(python, pure, home, numba)), flush=True)
            except (subprocess.CalledProcessError, OSError, ValueError) as error:
                failed += 1
                print(f"FAILED: {python} {numba}: {error}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
