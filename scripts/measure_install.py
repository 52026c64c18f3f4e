"""What an install takes: size of a new environment with the wheel in it, and how long its shortest commands take.

    scripts/measure install                 builds the wheel, installs it with pip, needs the package index
    scripts/measure install --runs 20
    scripts/measure install --against /path/to/other/venv/bin/perfwatch

The environment has no pip of its own, as those of uv and pipx; pip compiles what it installs, and that counts. The commands take
turns, so that drift of the machine cancels. Prints each with its 95 % confidence interval, and its CPU time, which other load does
not change much. The wheel is of the last commit. 1 when a goal is missed surely.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

from measuring import BEFORE_OTHERS, Interval

MOST_MIB = 40.0
DEAD_PID = "4194303"
GOALS = {"--help": 0.100, f"attach {DEAD_PID}": 0.250}
REPOSITORY = Path(__file__).resolve().parent.parent


def main() -> int:
    """Install, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="of each command")
    parser.add_argument("--against", help="the perfwatch of another install")
    parser.add_argument(
        "--before-others", action="store_true", help="on a busy machine: real-time priority, needs root"
    )
    options = parser.parse_args()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory(prefix="perfwatch-install-") as place:
        installed = Path(place) / "venv"
        _install(Path(place), installed, environment)
        mib = _size_bytes(installed) / 2**20
        print(f"size {mib:.1f} MiB", flush=True)
        missed = mib > MOST_MIB
        programs = {"this": str(installed / "bin/perfwatch")} | (
            {"against": options.against} if options.against else {}
        )
        first = BEFORE_OTHERS if options.before_others else ()
        environment |= {"PERFWATCH_NICE": "0"} if options.before_others else {}
        taken: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for _ in range(options.runs):
            for words in GOALS:
                for name, program in programs.items():
                    taken.setdefault((words, name), []).append(_timed((*first, program, *words.split()), environment))
    for (words, name), runs in taken.items():
        wall, cpu = (Interval.of([1000 * run[which] for run in runs]) for which in (0, 1))
        print(
            f"{words:<16}{name:<9}{wall.mean:6.0f} ms ({wall.low:.0f} .. {wall.high:.0f}, n = {wall.samples}), "
            f"CPU {cpu.mean:.0f} ms ({cpu.low:.0f} .. {cpu.high:.0f})"
        )
        missed |= name == "this" and wall.low > 1000 * GOALS[words]
    return int(missed)


def _install(place: Path, target: Path, environment: dict[str, str]) -> None:
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run(
        (*pip, "wheel", "--no-deps", "--wheel-dir", str(place), str(REPOSITORY)), check=True, env=environment
    )
    venv.create(target, with_pip=False, symlinks=True)
    (wheel,) = place.glob("*.whl")
    subprocess.run((*pip, "--python", str(target), "install", str(wheel)), check=True, env=environment)


def _size_bytes(folder: Path) -> int:
    """On disk, as du counts."""
    return sum(path.lstat().st_blocks * 512 for path in (folder, *folder.rglob("*")))


def _timed(command: Sequence[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds, and of CPU."""
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return time.monotonic() - begun, usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
