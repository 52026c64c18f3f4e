"""What the agent costs inside the job: nanoseconds per optimizer step, per import, and at the start of a process.

    .venv/bin/python scripts/measure agent [PYTHON...]      default: this Python

The hook is called 100,000 times, 15 rounds, without torch around it. The least of the rounds is the cost, the median
shows what else the machine was doing.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

AGENT_FOLDER = Path(__file__).resolve().parent.parent / "launcher" / "perfwatch" / "agent" / "on_path"
STARTS = 20

# Runs under the measured Python, which may be old and has no perfwatch.
HOOK = """
import itertools, os, statistics, sys, sysconfig, time
finder = next(finder for finder in sys.meta_path if getattr(finder, "__name__", "") == "_TorchArrives")
# Not by its name: where there is another sitecustomize (Ubuntu brings one), that one has it.
part = finder.find_spec.__globals__["_part"]
finder.hooked = True  # as once torch has been imported
hook = part("steps").counter(os.environ["PERFWATCH_AGENT_DIR"], part)

def cost(call, *arguments, calls=100_000):
    rounds = []
    for _ in range(15):
        began = time.perf_counter_ns()
        for _ in itertools.repeat(None, calls):
            call(*arguments)
        middle = time.perf_counter_ns()
        for _ in itertools.repeat(None, calls):
            pass
        rounds.append((middle - began - (time.perf_counter_ns() - middle)) / calls)
    return "%4.0f ns (median %4.0f)" % (min(rounds), statistics.median(rounds))

print("  step hook          ", cost(hook, None, (), {}))
print("  question per import", cost(finder.find_spec, "some.module"))
"""


def main() -> None:
    """Print the costs for each Python named on the command line."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        armed = {**os.environ, "PYTHONPATH": str(AGENT_FOLDER), "PERFWATCH_AGENT_DIR": folder}
        for python in sys.argv[1:] or [sys.executable]:
            version = subprocess.run([python, "-V"], check=True, capture_output=True, text=True).stdout.strip()
            print(version)
            hook = subprocess.run([python, "-c", HOOK], env=armed, check=True, capture_output=True, text=True)
            print(hook.stdout, end="")
            starts = sorted(start_microseconds(python, armed) for _ in range(STARTS))
            print(f"  start of a process   {starts[0]:4d} us (median {statistics.median(starts):4.0f})")


def start_microseconds(python: str, environment: dict[str, str]) -> int:
    """How long the import of the agent takes when this Python starts, by its own account."""
    done = subprocess.run([python, "-X", "importtime", "-c", "pass"], env=environment, capture_output=True, text=True)
    # The last line of the name is the outermost: it includes the search for the sitecustomize that the agent shadows.
    (*_, last) = (line for line in done.stderr.splitlines() if line.split("|")[-1].strip() == "sitecustomize")
    return int(last.split("|")[1])


if __name__ == "__main__":
    main()
