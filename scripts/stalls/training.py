"""A training that goes on after a pause: it makes steps of some 40 ms, pauses once, and makes steps again.

    python training.py KIND SECONDS      without either, it prints the kinds

Each kind of pause is a function below. All of them end: none may be called hung.
"""

import asyncio
import fcntl
import hashlib
import http.server
import multiprocessing
import os
import pickle
import queue
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

BEFORE, AFTER = 200, 40  # steps
PAUSES: dict[str, Callable[[float], None]] = {}


def pause(function: Callable[[float], None]) -> Callable[[float], None]:
    """A kind of pause, by the function's name."""
    PAUSES[function.__name__] = function
    return function


def detached(script: str, *arguments: str) -> None:
    """Run a script that is no child of the training: init's, in a session of its own."""
    again = "import os, sys\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        exec(sys.argv[1])\n    os._exit(0)\n"
    subprocess.run([sys.executable, "-c", again + "os.wait()", script, *arguments], check=True)


def works(seconds: float) -> int:
    """Arithmetic of Python."""
    end, total = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        total += sum(i * i for i in range(2000))
    return total


def folder() -> Path:
    """A new folder, which is the program's own."""
    return Path(tempfile.mkdtemp())


# The machine's own work


@pause
def compiles(seconds: float) -> None:
    """As a compiler in Python does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        compile("\n".join(f"def kernel_{i}(x):\n    return x * {i} + x / ({i} + 1)" for i in range(300)), "out", "exec")


@pause
def compiles_in_a_child(seconds: float) -> None:
    """As nvcc or gcc do."""
    subprocess.run(
        [sys.executable, "-c", f"import time\ne=time.time()+{seconds}\nwhile time.time()<e: sum(range(9999))"],
        check=True,
    )


@pause
def saves_to_a_slow_disk(seconds: float) -> None:
    """A checkpoint in pieces."""
    with open(folder() / "model.pt", "wb") as file:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            file.write(b"\0" * 2**18)
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.25)


@pause
def saves_in_bursts(seconds: float) -> None:
    """A share that takes a piece every few seconds."""
    path, end = folder(), time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        torch.save(torch.zeros(2**16), path / f"shard_{number}.pt")
        number += 1
        time.sleep(min(7.0, max(0.0, end - time.monotonic())))


@pause
def pickles(seconds: float) -> None:
    """A replay memory."""
    end, memory = time.monotonic() + seconds, [{"state": [float(i)] * 20, "reward": i} for i in range(30000)]
    while time.monotonic() < end:
        pickle.dumps(memory)


@pause
def evaluates(seconds: float) -> None:
    """On held-out data."""
    model, end = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).eval(), time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < end:
            model(torch.randn(64, 256)).argmax(1)


@pause
def evaluates_in_a_child(seconds: float) -> None:
    """A script of its own, whose output is collected."""
    script = (
        f"import time\ne=time.time()+{seconds}\nwhile time.time()<e: sum(x*x for x in range(999))\nprint('bleu 21.3')"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


@pause
def decomposes(seconds: float) -> None:
    """A whitening of features."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.linalg.svd(torch.randn(500, 500))


@pause
def hashes_natively(seconds: float) -> None:
    """One native call after another, without the GIL."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        hashlib.pbkdf2_hmac("sha256", b"shard", b"salt", 3_000_000)


@pause
def queries_a_database(seconds: float) -> None:
    """Native code that keeps the thread for as long as the query lasts."""
    base, end = sqlite3.connect(":memory:"), time.monotonic() + seconds
    base.create_function("late", 0, lambda: int(time.monotonic() > end))
    base.execute(
        "with recursive n(i) as (select 1 union all select i + 1 from n where i % 20000 or not late()) select max(i) from n"
    ).fetchone()


@pause
def matches_long_texts(seconds: float) -> None:
    """Cleaning by regular expressions, some of which take long."""
    end, text = time.monotonic() + seconds, "a" * 23 + "!"
    while time.monotonic() < end:
        re.match(r"(a|aa)+$", text)


# Others work for it


def tokenised(seconds: float) -> int:
    """One document."""
    return works(seconds)


def fetched(seconds: float) -> float:
    """One file, from a store that is slow."""
    time.sleep(seconds)
    return seconds


@pause
def preprocesses_in_a_pool(seconds: float) -> None:
    """Of processes."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(tokenised, [seconds / 4] * 8, chunksize=1)


@pause
def fetches_in_a_pool(seconds: float) -> None:
    """Of processes that wait for their store."""
    with multiprocessing.get_context("fork").Pool(4) as pool:
        list(pool.imap_unordered(fetched, [seconds / 3] * 12))


@pause
def fetches_in_threads(seconds: float) -> None:
    """That wait for their store."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fetched, [seconds / 2] * 8))


@pause
def preprocesses_in_threads(seconds: float) -> None:
    """That compute."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(works, [seconds / 4] * 4))


@pause
def gets_from_a_thread(seconds: float) -> None:
    """A queue that a thread fills when it has slept."""
    filled: queue.Queue[int] = queue.Queue()

    def producer() -> None:
        time.sleep(seconds)
        filled.put(1)

    threading.Thread(target=producer, daemon=True).start()
    filled.get()


@pause
def waits_for_a_timer(seconds: float) -> None:
    """An event that a timer sets."""
    ready = threading.Event()
    threading.Timer(seconds, ready.set).start()
    ready.wait()


class Slow(Dataset[torch.Tensor]):
    """Samples of which the first takes long."""

    def __init__(self, seconds: float, busy: bool) -> None:
        self._seconds, self._busy = seconds, busy

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 0:
            (works if self._busy else time.sleep)(self._seconds)
        return torch.zeros(2)


@pause
def first_batch_computes(seconds: float) -> None:
    """In a worker of a new DataLoader."""
    list(DataLoader(Slow(seconds, busy=True), num_workers=1))


@pause
def first_batch_is_fetched(seconds: float) -> None:
    """In a worker of a new DataLoader."""
    list(DataLoader(Slow(seconds, busy=False), num_workers=2))


# The network


class Server(http.server.BaseHTTPRequestHandler):
    """Gives after a while, or a little at a time; takes what is put a little at a time."""

    def do_GET(self) -> None:
        """``/think/SECONDS`` or ``/trickle/SECONDS``."""
        _, how, seconds = self.path.split("/")
        if how == "think":
            time.sleep(float(seconds))
        self.send_response(200)
        self.end_headers()
        end = time.monotonic() + (float(seconds) if how == "trickle" else 0.0)
        while time.monotonic() < end:
            self.wfile.write(b"x" * 1000)
            time.sleep(1.0)

    def do_PUT(self) -> None:
        """``/slowly/SECONDS``."""
        seconds, left = float(self.path.split("/")[2]), int(self.headers["Content-Length"])
        pieces = 20
        for _ in range(pieces):
            self.rfile.read(left // pieces)
            time.sleep(seconds / pieces)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


SERVE = """
import sys
sys.path.insert(0, sys.argv[2])
import http.server, training
training.http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3])), training.Server).serve_forever()
"""


def served() -> str:
    """The address of a server that is no part of the job; it ends with the machine's next minutes."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    limit = "import threading, os; threading.Timer(150, os._exit, (0,)).start()\n"
    detached(limit + SERVE, str(Path(__file__).parent), str(port))
    address, end = f"http://127.0.0.1:{port}", time.monotonic() + 60
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return address
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the server does not start")


@pause
def downloads_a_little_at_a_time(seconds: float) -> None:
    """From a slow mirror."""
    urllib.request.urlopen(f"{ADDRESS}/trickle/{seconds}", timeout=300).read()


@pause
def asks_a_server_that_thinks(seconds: float) -> None:
    """Not a byte comes meanwhile."""
    urllib.request.urlopen(f"{ADDRESS}/think/{seconds}", timeout=300).read()


@pause
def uploads_slowly(seconds: float) -> None:
    """A checkpoint, to a store that takes a piece now and then."""
    body = b"\0" * 2**26
    urllib.request.urlopen(urllib.request.Request(f"{ADDRESS}/slowly/{seconds}", data=body, method="PUT")).read()


@pause
def gathers_answers(seconds: float) -> None:
    """Of an event loop."""

    async def answer() -> None:
        await asyncio.to_thread(lambda: urllib.request.urlopen(f"{ADDRESS}/think/{seconds}").read())

    async def all_of_them() -> None:
        await asyncio.gather(*(answer() for _ in range(3)))

    asyncio.run(all_of_them())


# Rests


@pause
def backs_off(seconds: float) -> None:
    """After failures."""
    end, again = time.monotonic() + seconds, 1.0
    while time.monotonic() < end:
        print("503, trying again", flush=True)
        time.sleep(min(again, max(0.0, end - time.monotonic())))
        again *= 2


@pause
def rests_between_rounds(seconds: float) -> None:
    """One sleep."""
    time.sleep(seconds)


@pause
def cools_down(seconds: float) -> None:
    """Short sleeps, until a moment."""
    until = time.time() + seconds
    while time.time() < until:
        time.sleep(1.0)


@pause
def runs_a_command_that_sleeps(seconds: float) -> None:
    """As a script that waits for a mount does."""
    subprocess.run(["sleep", str(seconds)], check=True)


@pause
def reads_a_pipe_of_a_resting_child(seconds: float) -> None:
    """Line by line."""
    script = f"import time; print('begin', flush=True); time.sleep({seconds}); print('end')"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)


@pause
def waits_for_a_file_of_a_child(seconds: float) -> None:
    """Which it looks for once a second."""
    flag = folder() / "round_2.ready"
    script = "import sys, time, pathlib; time.sleep(float(sys.argv[1])); pathlib.Path(sys.argv[2]).touch()"
    with subprocess.Popen([sys.executable, "-c", script, str(seconds), str(flag)]):
        while not flag.exists():
            time.sleep(1.0)


@pause
def waits_for_a_file_from_outside(seconds: float) -> None:
    """Which it looks for once a second."""
    flag = folder() / "round_2.ready"
    detached(
        "import time, pathlib; time.sleep(float(sys.argv[2])); pathlib.Path(sys.argv[3]).touch()",
        str(seconds),
        str(flag),
    )
    while not flag.exists():
        time.sleep(1.0)


@pause
def waits_for_a_lock_on_a_file(seconds: float) -> None:
    """That a process outside of the job holds."""
    path = folder() / "cache.lock"
    path.touch()
    taken = path.with_suffix(".taken")
    detached(
        "import time, fcntl, pathlib\nf = open(sys.argv[3]); fcntl.flock(f, fcntl.LOCK_EX); pathlib.Path(sys.argv[4]).touch()\n"
        "time.sleep(float(sys.argv[2]))",
        str(seconds), str(path), str(taken),
    )  # fmt: skip
    while not taken.exists():
        time.sleep(0.05)
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)


# Of two ranks, the first does something that the second waits for


def first_rank(rank: int, seconds: float, kind: str, address: str, meeting: str) -> None:
    """Both train, the first one pauses."""
    global ADDRESS
    ADDRESS = address
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=timedelta(minutes=10)
    )
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    trains(model, BEFORE)
    if rank == 0:
        PAUSES[kind](seconds)
    dist.barrier()
    trains(model, AFTER)
    dist.destroy_process_group()


def of_two(kind: str, seconds: float) -> None:
    """Two ranks, of which the first one pauses."""
    torch.multiprocessing.spawn(  # type: ignore[attr-defined, no-untyped-call]
        first_rank, (seconds, kind, ADDRESS, str(folder() / "meeting")), nprocs=2, start_method="spawn"
    )


def trains(model: nn.Module, steps: int) -> None:
    """So many steps."""
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss = model(torch.randn(64, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.035)  # as long as a card would take


TWO = (
    "evaluates",
    "rests_between_rounds",
    "asks_a_server_that_thinks",
    "saves_in_bursts",
    "evaluates_in_a_child",
    "cools_down",
)
KINDS = (*PAUSES, *(f"{kind}/two" for kind in TWO))
SERVED = frozenset(("downloads_a_little_at_a_time", "asks_a_server_that_thinks", "uploads_slowly", "gathers_answers"))
ADDRESS = ""


def main() -> None:
    """Train, pause, train."""
    global ADDRESS
    if len(sys.argv) == 1:
        print("\n".join(KINDS))
        return
    kind, _, two = sys.argv[1].partition("/")
    seconds = float(sys.argv[2])
    ADDRESS = served() if kind in SERVED else ""
    if two:
        of_two(kind, seconds)
        return
    model = nn.Linear(64, 64)
    trains(model, BEFORE)
    PAUSES[kind](seconds)
    trains(model, AFTER)


if __name__ == "__main__":
    main()
