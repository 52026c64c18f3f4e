"""Run every pair on the cards of this machine: programs are built side by side, each is measured alone on its card.

    python scripts/headroom/all_pairs.py FOLDER ARCHIVES [SECONDS [NAME ...]]

Names choose pairs; ``first`` and ``second`` choose one set of them. Whatever still runs after SECONDS (default 480) is ended. Each
pair leaves NAME.json (step times) and its torch traces in FOLDER; archives of at most 14 MB hold them all. CUDA_VISIBLE_DEVICES
limits the cards; the programs of two ranks want two.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
FAMILIES = ("decoder", "encoder", "vision", "tables", "sequences", "second/language", "second/images", "second/others")
OF_RANKS = ("ranks", "second/cards")
AT_ONCE = 6
ARCHIVE_BYTES, MOST_ARCHIVES = 14_000_000, 7


def main(folder: Path, archives: Path, seconds: float, chosen: set[str]) -> None:
    """The programs of two ranks, which want two cards; then waves of programs, one queue for each card."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + seconds
    listed = (
        subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.strip().splitlines()
    )
    cards = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(len(listed))))).split(",")
    families = itertools.zip_longest(*([(family, name) for name in _names(family)] for family in FAMILIES))
    work = [one for row in families for one in row if one is not None and _wanted(*one, chosen)]
    for family in OF_RANKS if len(cards) > 1 else ():
        names = [name for name in _names(family) if _wanted(family, name, chosen)]
        _finish([_ranks(folder, family, ",".join(names))] if names else [], ends)
    with ThreadPoolExecutor(len(cards)) as pool:
        list(pool.map(lambda card: _waves(folder, cards[card], work[card :: len(cards)], ends), range(len(cards))))
    for log in sorted(folder.glob("*.log")):
        if not (folder / f"{log.stem}.json").exists():
            print(f"--- {log.stem}\n{log.read_text()[-700:]}")
    _packed(folder, archives)


def _packed(folder: Path, archives: Path) -> None:
    """All of it, the short files first: what does not fit into eight archives is what is largest."""
    files = sorted(
        (one for one in folder.iterdir() if not one.name.startswith(".")), key=lambda one: one.stat().st_size
    )
    number, room = 0, 0
    archive: tarfile.TarFile | None = None
    for file in files:
        size = file.stat().st_size
        if archive is None or size > room:
            if archive is not None:
                archive.close()
            if number == MOST_ARCHIVES:
                print(f"left out: {file.name} ({size:,} bytes)")
                break
            archive, number, room = tarfile.open(archives / f"headroom{number}.tar", "w"), number + 1, ARCHIVE_BYTES
        archive.add(file, file.name)
        room -= size + 1024
    if archive is not None:
        archive.close()


def _wanted(family: str, name: str, chosen: set[str]) -> bool:
    return not chosen or name in chosen or ("second" if family.startswith("second/") else "first") in chosen


def _names(family: str) -> list[str]:
    text = (HERE / f"{family}.py").read_text().split("PAIRS = {")[1]
    return [line.split('"')[1] for line in text.splitlines() if line.startswith('    "')]


def _waves(folder: Path, card: str, work: list[tuple[str, str]], ends: float) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": card, "HEADROOM_LOCK": str(folder / f".lock{card}")}
    for first in range(0, len(work), AT_ONCE):
        running = [
            _started(folder, name, [sys.executable, str(HERE / f"{family}.py"), name, str(folder)], environment)
            for family, name in work[first : first + AT_ONCE]
            if time.monotonic() < ends - 20
        ]
        _finish(running, ends)


def _ranks(folder: Path, family: str, names: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               str(HERE / f"{family}.py"), names, str(folder)]  # fmt: skip
    return _started(folder, Path(family).name, command, {**os.environ, "NCCL_NVLS_ENABLE": "0"})


def _started(folder: Path, name: str, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    more = {"TORCHINDUCTOR_COMPILE_THREADS": "3", "OMP_NUM_THREADS": "4"}
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, env={**environment, **more}, stdout=log, stderr=log, start_new_session=True)


def _finish(running: list[subprocess.Popen[bytes]], ends: float) -> None:
    for one in running:
        try:
            one.wait(max(1.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()


if __name__ == "__main__":
    limit = float(sys.argv[3]) if len(sys.argv) > 3 else 480.0
    main(Path(sys.argv[1]), Path(sys.argv[2]), limit, set(sys.argv[4:]))
