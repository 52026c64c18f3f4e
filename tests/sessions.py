"""Sessions for tests: made with the product's own recorder, so that they are what users have."""

from pathlib import Path

from perfwatch.recording.compression import plain
from perfwatch.recording.recording import Recorder
from perfwatch.recording.session import Machine, Session
from perfwatch.verdict import Coverage, ObserverCost, Timeline, Verdict
from perfwatch_probes.readings import Frame, Process, Reading, Stack, Thread

CREATED = 1_795_175_484.0  # 2026-11-20T11:51:24Z
PATIENCE_SECONDS = 20.0


def session(**changes: object) -> Session:
    """A session of two ranks on node-a."""
    facts: dict[str, object] = {
        "version": "0.1.0",
        "created": CREATED,
        "mode": "run",
        "machine": Machine(name="node-a", kernel="6.1", architecture="x86_64", cpus=8, memory_bytes=2**34),
        "command": ("python", "train.py"),
        "root_pids": (700,),
        **changes,
    }
    return Session(**facts)  # type: ignore[arg-type]


def verdict(**changes: object) -> Verdict:
    """A verdict without anything that is not asked for."""
    parts: dict[str, object] = {
        "state": "hung",
        "cause": "stuck_worker",
        "confidence": 0.97,
        "summary": "worker 758 has slept at train.py:9 for 412 s",
        "owner": "user_code",
        "at": "2026-11-20T11:51:24Z",
        "coverage": Coverage(ranks_seen=2, world_size=2),
        "timeline": Timeline(),
        "observer_cost": ObserverCost(cpu_seconds=0.21, stack_dumps=6),
        **changes,
    }
    return Verdict(**parts)  # type: ignore[arg-type]


def readings(second: int = 0) -> list[Reading]:
    """What one look at a small job gives."""
    return [
        Process(pid=700, start_ticks=1, parent_pid=1, name="python", command=("python", "train.py"), python=True),
        Thread(pid=700, tid=700, name="python", state="S", cpu_seconds=float(second)),
        Stack(pid=700, tid=700, frames=(Frame("read", "/app/train.py", 9),)),
    ]


def content_of(file: Path) -> bytes:
    """The lines of a file of a session, compressed or not."""
    with file.open("rb") as opened:
        return plain(opened).read()


def uncompress(folder: Path) -> Path:
    """Make each segment of a session what it was before it was complete."""
    for file in folder.glob("*-*.jsonl"):
        file.write_bytes(content_of(file))
    return folder


def record(folder: Path, seconds: int = 3, **changes: object) -> Path:
    """A finished session: so many seconds of readings, a verdict after two, an outcome at the end."""
    folder.mkdir(mode=0o700)
    recorder = Recorder(folder, session(**changes))
    for second in range(seconds):
        recorder.append(float(second), readings(second))
    recorder.event(2.0, "verdict", "worker 758 sleeps", verdict())
    recorder.event(float(seconds), "outcome", "killed by signal 15", facts={"signal": 15})
    assert recorder.close(PATIENCE_SECONDS) == ""
    return folder
