"""What a job can put into names, and what must never come of it: markup, control characters, text that runs backwards, length."""

from pathlib import Path

from perfwatch.recording.recording import Recorder
from perfwatch.recording.session import Machine
from perfwatch.verdict import Alternative, Culprit, Evidence, Link, Missing, Verdict
from perfwatch_probes.readings import Frame, Gpu, GpuActivity, Process, Reading, Stack, Thread
from tests.sessions import PATIENCE_SECONDS, session, verdict

SCRIPT = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
STEERING = "\x1b]0;owned\x07\x1b[2J\r\x08\x00"
BACKWARDS = "\N{RIGHT-TO-LEFT OVERRIDE}gpj.exe"
LONG = "x" * 10_000
TEMPLATE = "{{ 7 * 7 }}{% raw %}"
MARKDOWN = "[click](javascript:alert(1)) `code` |cell| # title @everyone"
NASTY = SCRIPT + STEERING + BACKWARDS + TEMPLATE + MARKDOWN


def readings(second: int) -> list[Reading]:
    """A process, a thread, a stack and a card with such names everywhere."""
    frames = (
        Frame(NASTY, f"/app/{NASTY}.py", 9),
        Frame(LONG, f"/app/{LONG}.py", 10),
        Frame("main", "/app/train.py", 11),
    )
    return [
        Process(pid=700, start_ticks=1, parent_pid=1, name=NASTY, command=("python", NASTY, LONG), python=True, rank=0),
        Thread(pid=700, tid=700, name=NASTY, state="S", cpu_seconds=float(second)),
        Stack(pid=700, tid=700, thread=NASTY, frames=frames, samples=3, span_seconds=0.5),
        Gpu(uuid="GPU-0", index=0, name=NASTY, driver_version=NASTY),
        GpuActivity(uuid="GPU-0", interval_seconds=1.0, graphics=0.5, dram=0.1),
    ]


def record(folder: Path) -> Path:
    """A session whose every text is hostile."""
    folder.mkdir(mode=0o700)
    machine = Machine(name=NASTY, kernel=NASTY, architecture="x86_64", cpus=8, memory_bytes=2**34)
    recorder = Recorder(folder, session(command=("python", NASTY, LONG), machine=machine, conditions={NASTY: LONG}))
    for second in range(12):
        recorder.append(float(second), readings(second))
    recorder.event(6.0, "verdict", NASTY + LONG, said())
    recorder.event(7.0, NASTY, NASTY)
    kernels = [{"name": NASTY, "seconds": 1.0, "family": NASTY, "part": LONG, "count": 1}, {"name": 7}, "no kernel"]
    facts = {
        "summary": NASTY,
        "notes": [NASTY, 3],
        "report": {"ranks": [{"rank": 0, "kernels": kernels}]},
        "files": "none",
    }
    recorder.event(8.0, "capture", NASTY, facts=facts)
    assert recorder.close(PATIENCE_SECONDS) == ""
    return folder


def said() -> Verdict:
    """A verdict that repeats such names in every part."""
    return verdict(
        summary=NASTY + LONG,
        culprits=(Culprit(pid=700, rank=0, thread=NASTY, frame=NASTY, host=NASTY),),
        wait_chain=(Link(pid=700, waits_for=NASTY), Link(pid=701, waits_for=LONG, depth=1)),
        evidence=(Evidence(witness=NASTY, entity=NASTY, claim=NASTY, observed=LONG, expected=NASTY),),
        alternatives=(Alternative(cause=NASTY, refuted_by=NASTY),),
        missing=(Missing(witness=NASTY, reason=NASTY, advice=NASTY),),
        next=(NASTY,),
    )
