"""An hour of an 8-GPU job with 64 processes, as a session: what the watcher of such a job writes, at the watcher's own rates.

Steps of 0.4 s, a card that waits for 15 % of them, a checkpoint every ten minutes; in the last minute one worker of rank 5 stops
and everybody waits for it. ``write`` makes the folder; every number in it is made up, the shape is that of real recordings.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from perfwatch.recording.recording import Event, Record
from perfwatch.recording.session import Machine, Session
from perfwatch.verdict import Coverage, ObserverCost, Timeline, Verdict
from perfwatch_probes import readings as r

CREATED = 1_795_175_484.0  # 2026-11-20T11:51:24Z
GIB = 2**30
RANKS, WORKERS = 8, 7  # processes: 8 ranks with 7 workers each
STUCK_SECONDS = 60.0
STEP_SECONDS = 0.4
LIBRARY = "/usr/lib/python3.12"
TORCH = "/home/user/venv/lib/python3.12/site-packages/torch"
TRAIN, GRAPH, ADAMW, LOADER = (
    "/home/user/train.py",
    f"{TORCH}/autograd/graph.py",
    f"{TORCH}/optim/adamw.py",
    f"{TORCH}/utils/data/dataloader.py",
)
PLACES = (  # where a rank is seen, innermost frame first
    (("_engine_run_backward", GRAPH, 869), ("backward", f"{TORCH}/_tensor.py", 631), ("step", TRAIN, 61)),
    (("adamw", ADAMW, 512), ("step", f"{TORCH}/optim/optimizer.py", 493), ("step", TRAIN, 64)),
    (("_try_get_data", LOADER, 1291), ("__next__", LOADER, 725), ("epoch", TRAIN, 52)),
    (("log", TRAIN, 66), ("epoch", TRAIN, 55)),
)
CONNECTION, QUEUES, WORKER = (
    f"{LIBRARY}/multiprocessing/connection.py",
    f"{LIBRARY}/multiprocessing/queues.py",
    f"{TORCH}/utils/data/_utils/worker.py",
)
WAITS_FOR_WORKER = (
    ("wait", CONNECTION, 947), ("poll", CONNECTION, 257), ("get", QUEUES, 113),
    ("_try_get_data", LOADER, 1291), ("__next__", LOADER, 725), ("epoch", TRAIN, 52),
)  # fmt: skip
SLEEPS = (
    ("__getitem__", TRAIN, 13),
    ("fetch", f"{TORCH}/utils/data/_utils/fetch.py", 54),
    ("_worker_loop", WORKER, 349),
)
MAIN = ("<module>", TRAIN, 80)
LATE_RANK, LATE_WORKER = 5, 3


def rank_pid(rank: int) -> int:
    """The process of a rank."""
    return 1000 + 10 * rank


def uuid(card: int) -> str:
    """The name of a card."""
    return f"GPU-00000000-0000-0000-0000-0000000000{card:02}"


def readings(seconds: float, chance: random.Random) -> Iterator[tuple[float, r.Reading]]:
    """Everything that was read, in order of time."""
    yield from ((0.01, one) for one in _lasting())
    stuck_at = seconds - STUCK_SECONDS
    for second in range(int(seconds)):
        at, stuck = float(second), second >= stuck_at
        for rank in range(RANKS):
            yield from _of_rank(at, rank, min(at, stuck_at), stuck, chance)
        if second % 10 == 0 or stuck:
            yield from ((at, one) for one in _of_machine(at, min(at, stuck_at), chance))
        if second % 60 == 30 or (stuck and second % 4 == 0):
            for rank in range(RANKS):
                yield from _stacks(at, rank, stuck, chance)


def _lasting() -> Iterator[r.Reading]:
    for rank in range(RANKS):
        pid = rank_pid(rank)
        facts: dict[str, Any] = {
            "start_ticks": 500 + rank,
            "python": True,
            "torch_loaded": True,
            "command": ("python", "train.py"),
        }
        yield r.Process(pid=pid, parent_pid=900, name="python", rank=rank, local_rank=rank, world_size=RANKS, **facts)
        for worker in range(1, WORKERS + 1):
            yield r.Process(
                pid=pid + worker, parent_pid=pid, name="pt_data_worker", rank=rank, world_size=RANKS, **facts
            )
        yield r.Gpu(
            uuid=uuid(rank), index=rank, name="NVIDIA H200", driver_version="580.159.04", sms=132, memory_bytes=141 * GIB,
            power_limit_watts=700.0, sm_clock_max_mhz=1980, gpm=True, compute_capability=(9, 0), architecture="hopper",
        )  # fmt: skip
        yield r.GpuBinding(pid=pid, uuids=(uuid(rank),), visible=(uuid(rank),), how="nvml", cuda=True)


def _of_rank(
    at: float, rank: int, moved: float, stuck: bool, chance: random.Random
) -> Iterator[tuple[float, r.Reading]]:
    pid = rank_pid(rank)
    saving = 0 <= at % 600 - 580 < 12 and not stuck
    steps = int(moved / STEP_SECONDS)
    intervals = () if stuck or saving else (STEP_SECONDS + chance.random() * 0.02, STEP_SECONDS)
    yield at, r.Steps(pid=pid, tid=pid, count=steps, step_ago_seconds=at - moved + 0.1, interval_seconds=intervals)
    waits = rank != LATE_RANK
    watchdog = r.Thread(pid=pid, tid=pid + 5000, name="pt_nccl_watchdg", state="S", cpu_seconds=0.1)
    if at % 60 == 0:
        yield at, watchdog
    yield at, r.Thread(
        pid=pid, tid=pid, name="python", state="R" if not stuck else "S", cpu_seconds=moved * 0.9, run_seconds=moved * 0.9,
        voluntary_switches=steps * 9, ran_ago_seconds=at - moved,
        wait=r.Wait(call="futex", number=202, kind="futex", forever=True) if stuck and waits else None,
    )  # fmt: skip
    busy = 0.0 if saving else 1.0 if stuck and waits else 0.0 if stuck else 0.85 + chance.random() * 0.08
    looks = 10 if stuck else 1
    for look in range(looks):
        then = at + look / looks
        yield then, r.GpuSample(
            uuid=uuid(rank), utilisation=min(1.0, busy + 0.1), memory_utilisation=0.4 * busy, memory_used_bytes=88 * GIB,
            power_watts=120 + 480 * busy * (not stuck), temperature_celsius=61, sm_clock_mhz=1755, memory_clock_mhz=3201,
            reasons=0, pcie_generation=5, pcie_width=16, nvlink_received_kib=int(moved * 2e6), nvlink_sent_kib=int(moved * 2e6),
        )  # fmt: skip
        live = 0.0 if stuck else 1.0
        yield then, r.GpuActivity(
            uuid=uuid(rank), interval_seconds=1 / looks, graphics=busy, sm_active=busy * 0.9, sm_occupancy=busy * 0.4,
            tensor=live * busy * 0.45, dram=live * busy * 0.5, fp32=live * busy * 0.1, fp16=0.0, fp64=0.0, integer=live * 0.1,
            pcie_received_mib_per_second=live * 400.0, nvlink_received_mib_per_second=live * 9000.0,
        )  # fmt: skip


def _of_machine(at: float, worked: float, chance: random.Random) -> Iterator[r.Reading]:
    for rank in range(RANKS):
        for process in range(WORKERS + 1):
            yield r.ProcessUsage(
                pid=rank_pid(rank) + process, state="S", threads=31, cpu_seconds=worked * 0.6, major_faults=3, minor_faults=10**6,
                resident_bytes=4 * GIB, read_chars=int(worked * 1e7), written_chars=10**6, read_bytes=int(worked * 1e6),
                read_calls=int(worked * 90), write_calls=100, open_files=77,
            )  # fmt: skip
    yield r.Host(
        cpus_online=192, user_seconds=at * 51, system_seconds=at * 6, idle_seconds=at * 134, iowait_seconds=at, steal_seconds=0.0,
        running_threads=52, blocked_threads=0, load_1min=50.2, memory_total_bytes=2048 * GIB,
        memory_available_bytes=int((900 + chance.random() * 9) * GIB), shm_total_bytes=1024 * GIB, shm_used_bytes=9 * GIB,
        pressure={
            name: r.Pressure(some_microseconds=int(at * rate), full_microseconds=int(at * rate / 2))
            for name, rate in (("cpu", 9000), ("io", 30000), ("memory", 0))
        },
    )  # fmt: skip
    yield r.ProbeCall(probe="process", entity="job", duration_seconds=0.02, cpu_seconds=0.011, outcome="ok")
    yield r.ProbeCall(probe="gpu", entity="all", duration_seconds=0.01, cpu_seconds=0.008, outcome="ok")


def _stacks(at: float, rank: int, stuck: bool, chance: random.Random) -> Iterator[tuple[float, r.Reading]]:
    pid = rank_pid(rank)
    yield at, r.ProbeCall(probe="stacks", entity=f"pid {pid}", duration_seconds=3.0, cpu_seconds=0.09, outcome="ok")
    places = ((WAITS_FOR_WORKER if rank == LATE_RANK else PLACES[0]),) if stuck else PLACES
    for number in range(5 if stuck else 40):
        span = 0.6 if stuck else 0.075
        then = at + 0.075 * number
        frames = tuple(r.Frame(*frame) for frame in (*chance.choice(places), MAIN))
        yield then, r.Stack(pid=pid, tid=pid, thread="MainThread", frames=frames, samples=4, span_seconds=span)
        if stuck and rank == LATE_RANK:
            frames = tuple(r.Frame(*frame) for frame in (*SLEEPS, MAIN))
            worker = pid + LATE_WORKER
            yield (
                then,
                r.Stack(pid=worker, tid=worker, thread="MainThread", frames=frames, samples=4, span_seconds=span),
            )
    if stuck and rank == LATE_RANK:
        wait = r.Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=99_000.0)
        worker = pid + LATE_WORKER
        facts: dict[str, Any] = {
            "name": "pt_data_worker",
            "cpu_seconds": 3.0,
            "run_seconds": 3.0,
            "voluntary_switches": 90,
        }
        yield at, r.Thread(pid=worker, tid=worker, state="S", ran_ago_seconds=30.0, wait=wait, **facts)


def write(folder: Path, seconds: float = 3600.0, seed: int = 6) -> Path:
    """Make the session."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    machine = Machine(name="node-a", kernel="6.8", architecture="x86_64", cpus=192, memory_bytes=2048 * GIB)
    conditions: dict[str, str | int | float | bool | None] = {
        "world_size": RANKS,
        "patience_seconds": 60.0,
        "torch": "2.11.0+cu130",
        "batch": 64,
    }
    session = Session(
        version="0.1.0", created=CREATED, mode="run", machine=machine, command=("torchrun", "--nproc-per-node", "8", "train.py"),
        root_pids=(900,), conditions=conditions,
    )  # fmt: skip
    (folder / "session.json").write_bytes(msgspec.json.encode(session))
    encode = msgspec.json.Encoder().encode
    with open(folder / "readings-0001.jsonl", "wb") as file, open(folder / "stacks-0001.jsonl", "wb") as stacks:
        for at, reading in readings(seconds, random.Random(seed)):
            line = encode(Record(round(at, 4), reading))  # type: ignore[arg-type]
            (stacks if isinstance(reading, r.Stack) else file).write(line + b"\n")
    with open(folder / "events.jsonl", "wb") as file:
        for event in events(seconds):
            file.write(encode(event) + b"\n")
    for path in folder.iterdir():
        os.utime(path, (CREATED + seconds, CREATED + seconds))
    return folder


def events(seconds: float) -> Iterator[Event]:
    """What was said."""
    stuck = seconds - STUCK_SECONDS
    told = (
        (20.0, "verdict", "healthy", "gpu_bound", "the GPU is the bottleneck, as it should be"),
        (stuck + 5, "suspicion", "inconclusive", None, "rank 5 waits for its DataLoader worker"),
        (seconds - 2, "verdict", "hung", "stuck_worker", "worker 1053 has slept for 55 s"),
    )
    for at, kind, state, cause, text in told:
        if 0 < at < seconds:
            verdict = Verdict(
                state=state, cause=cause, confidence=0.9, summary=text, owner="unknown", at="", timeline=Timeline(decided=at),
                coverage=Coverage(ranks_seen=RANKS, world_size=RANKS), observer_cost=ObserverCost(),
            )  # fmt: skip
            yield Event(at, kind, text, verdict)
    for minute in range(15 if seconds > 900 else 1, int(seconds / 60), 20):
        kernels = [
            {
                "name": f"ampere_bf16_gemm_{size}",
                "family": "gemm",
                "part": "forward",
                "count": 96,
                "seconds": 0.1 / (1 + size),
            }
            for size in range(12)
        ]
        facts = {
            "kind": "torch",
            "window_seconds": 2.0,
            "total_seconds": 6.5,
            "summary": "5 steps of 0.40 s\nthe GPU is busy 87 % of the time",
            "files": [{"path": "captures/001-torch/rank0.json.gz", "size_bytes": 790_000}],
            "report": {"ranks": [{"rank": 0, "kernels": kernels}]},
        }
        yield Event(60.0 * minute, "capture", "torch: 5 steps of 8 ranks", facts=facts)
