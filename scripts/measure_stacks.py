"""How long ``perfwatch capture stacks`` takes on a job of 8 ranks with 4 loader workers each, beside py-spy alone and another version.

    scripts/measure stacks                                 5 rounds
    scripts/measure stacks --against /path/to/other/venv/bin/perfwatch
    scripts/measure stacks --ranks 2 --workers 2 --rounds 3

The conditions take turns within a round, forwards and backwards (ABCCBA), so that drift of the machine cancels:

- perfwatch: the command of this checkout, with all stacks folded
- against: the same command of another install, where one is named
- dumps: ``py-spy dump --nonblocking`` of every process, one after the other

Prints the mean of each with its 95 % confidence interval; 1 when the whole interval of perfwatch is above the goal.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil
from measuring import BEFORE_OTHERS, MARK, PERFWATCH, Interval, marked

from perfwatch_probes.stacks import find_py_spy

MOST_SECONDS = 1.0
# Every worker has fetched once when a rank says that it is ready; then all of them stand still, as in a hang.
RANK = """
import sys, time
import torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        if index >= 4 * int(sys.argv[1]):
            time.sleep(1e6)
        return torch.zeros(8)

loader = iter(torch.utils.data.DataLoader(Slow(), batch_size=1, num_workers=int(sys.argv[1])))
for _ in range(2 * int(sys.argv[1])):
    next(loader)
print("ready", flush=True)
for batch in loader:
    pass
"""


@contextmanager
def job(ranks: int, workers: int) -> Iterator[int]:
    """A job whose ranks and workers stand still; gives the pid of its launcher."""
    launcher = f"""
import os, subprocess, sys, torch
text = {RANK!r}
ranks = [
    subprocess.Popen([sys.executable, "-c", text, "{workers}"], stdout=subprocess.PIPE, env={{**os.environ, "RANK": str(rank),
        "LOCAL_RANK": str(rank), "WORLD_SIZE": "{ranks}", "LOCAL_WORLD_SIZE": "{ranks}", "OMP_NUM_THREADS": "1"}})
    for rank in range({ranks})
]
for rank in ranks:
    rank.stdout.readline()
print("ready", flush=True)
ranks[0].wait()
"""
    mark = f"stacks-{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", launcher],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, MARK: mark, "PYTHONWARNINGS": "ignore"},
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        for one in marked(mark):
            one.kill()
        process.wait()


def main() -> int:
    """Start the job, take turns, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4, help="of each rank")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", help="the perfwatch of another install")
    parser.add_argument(
        "--before-others", action="store_true", help="on a busy machine: real-time priority, needs root"
    )
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="perfwatch-stacks-") as place, job(options.ranks, options.workers) as pid:
        ours = (*PERFWATCH, "capture", "stacks", str(pid))
        commands: dict[str, list[Sequence[str]]] = {"perfwatch": [ours]}
        if options.against:
            commands["against"] = [(options.against, *ours[len(PERFWATCH) :])]
        processes = [one.pid for one in psutil.Process(pid).children(recursive=True)]
        dump = (str(find_py_spy()), "dump", "--nonblocking", "--pid")
        commands["dumps"] = [(*dump, str(one)) for one in processes]
        print(f"{len(processes)} processes, load {os.getloadavg()[0]:.1f}", flush=True)
        if options.before_others:
            os.environ["PERFWATCH_NICE"] = "0"
            commands = {name: [(*BEFORE_OTHERS, *one) for one in several] for name, several in commands.items()}
        _timed(commands["perfwatch"], _environment("perfwatch", place))  # compiles the modules
        for _ in range(options.rounds):
            for name in (*commands, *reversed(commands)):
                seconds.setdefault(name, []).append(_timed(commands[name], _environment(name, place)))
    for name, taken in seconds.items():
        spread = Interval.of(taken)
        print(f"{name:<10}{spread.mean:7.2f} s  ({spread.low:.2f} .. {spread.high:.2f}, n = {spread.samples})")
    return int(Interval.of(seconds["perfwatch"]).low > MOST_SECONDS)


def _environment(name: str, place: str) -> dict[str, str]:
    without = {
        "PYTHONDONTWRITEBYTECODE",
        *(["PYTHONPATH"] if name == "against" else []),
    }  # that one is an install of its own
    return {"PERFWATCH_DIR": place} | {name: value for name, value in os.environ.items() if name not in without}


def _timed(commands: Sequence[Sequence[str]], environment: dict[str, str]) -> float:
    begun = time.monotonic()
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main())
