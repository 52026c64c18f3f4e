"""What a session takes on disk, and what storing and loading it costs.

.venv/bin/python scripts/measure_session.py SESSION
.venv/bin/python scripts/measure_session.py --simulate 3600

Its readings and stacks are stored once more in a new folder, by the code of the writer process: ``stored`` is what that takes on
disk, of how many bytes that the watcher handed over, and the CPU time it took. ``loaded`` is the best of three.
"""

import argparse
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the simulated session belongs to the tests

from perfwatch.recording.compression import plain
from perfwatch.recording.recording import BUDGET_BYTES, load
from perfwatch.recording.segments import READINGS, STACKS, Segments
from perfwatch.recording.stack_tables import whole_lines
from tests.simulated_hour import write


def main() -> None:
    """Store, load, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("session", type=Path, nargs="?", help="a session folder")
    parser.add_argument(
        "--simulate", type=float, metavar="SECONDS", help="an hour, or less, of 8 GPUs and 64 processes"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perfwatch-session-") as place:
        source = write(Path(place) / "simulated", options.simulate) if options.simulate else options.session
        folder = Path(place) / "stored"
        folder.mkdir()
        (folder / "session.json").write_bytes((source / "session.json").read_bytes())
        for stream in (READINGS, STACKS):
            _store(source, folder, stream)
        _measure_loading(folder)


def _store(source: Path, folder: Path, stream: str) -> None:
    """Write the lines of a stream as they came from the watcher."""
    lines = []
    for file in sorted(source.glob(f"{stream}*.jsonl")):
        with file.open("rb") as content:
            lines += list(whole_lines(plain(content)))
    segments = Segments(folder, BUDGET_BYTES, print)
    began = time.process_time()
    for line in lines:
        segments.append(stream, line)
    segments.close()
    seconds = time.process_time() - began
    size = sum(file.stat().st_size for file in folder.glob(f"{stream}*"))
    print(
        f"{stream:<9} stored in {size / 2**20:.2f} of {sum(map(len, lines)) / 2**20:.2f} MiB, {len(lines)} lines, "
        f"{seconds:.2f} s of CPU"
    )


def _measure_loading(folder: Path) -> None:
    """Load it several times, and once more to see how much memory it takes."""
    times = []
    for _ in range(3):
        began = time.process_time()
        load(folder)
        times.append(time.process_time() - began)
    tracemalloc.start()
    recording = load(folder)
    memory, _ = tracemalloc.get_traced_memory()
    print(
        f"loaded    {len(recording.records)} readings in {min(times):.2f} s of CPU, {memory / 2**20:.1f} MiB of memory"
    )


if __name__ == "__main__":
    main()
