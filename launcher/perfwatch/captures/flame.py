"""``capture flame``: what a rank and its workers executed over some seconds, by ``py-spy record``, without stopping them.

One rank, unless several are named: that of the PID that was given, or the one that the verdict blames, or the first.

For each process a flame graph (SVG, any browser) and a speedscope profile (the same with threads side by side). Idle
threads are shown too: a training thread that waits for data is what the reader looks for.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from perfwatch.captures.capture import PTRACE, Collected, File, Request, Scene, Subject, Window
from perfwatch.errors import CaptureFailed, CaptureRefused, CaptureUnavailable
from perfwatch.text import duration
from perfwatch_probes.external import Finished
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.stacks import MISSING_ADVICE, Stacks, find_py_spy

NAME = "flame"
SUMMARY = "py-spy: a flame graph of one rank's Python and its workers' over some seconds"
DISTURBS = "nothing: the processes are not paused; 3 % of a core for each file at 50 samples a second"
USES: frozenset[str] = frozenset({PTRACE})
TRIGGERED_BY = ""
OPTIONS: Mapping[str, str] = {"rate": "samples a second, 1 to 200; 50 by default"}

SECONDS = 5.0
MOST_SECONDS = 60.0
RATE_HZ, MOST_RATE_HZ = 50, 200
MOST_RANKS = 4
MOST_WORKERS = 4  # they all do the same; of more, the first
LATE_SECONDS = 15.0  # py-spy draws its moments at random, so a record of 5 s may take 6; then it resolves names
_LOOK_SECONDS = 0.5
_FORMATS = (("flamegraph", "svg", "any browser"), ("speedscope", "speedscope.json", "speedscope.app"))


def belongs_to_the_user(scene: Scene) -> bool:
    """py-spy is ours, and may need our rights to read the process."""
    return False


def available(request: Request, scene: Scene) -> None:
    """py-spy is there, and what is asked for is bounded."""
    if find_py_spy() is None:
        raise CaptureUnavailable("py-spy is not installed", MISSING_ADVICE)
    if _seconds(request) > MOST_SECONDS:
        raise CaptureRefused(
            f"--seconds is too long: {duration(MOST_SECONDS)} at most", "--seconds 10 shows the same picture"
        )
    _rate(request)
    _subjects(request, scene)


def estimated_bytes(request: Request, scene: Scene) -> int:
    """A distinct stack a sample at the very worst."""
    return 2 * 2**20 * (1 + MOST_WORKERS) * max(1, len(request.ranks))


def command(request: Request, scene: Scene, folder: Path) -> tuple[tuple[str, ...], ...]:
    """One record per process and form, all at once."""
    return tuple(
        record_command(
            find_py_spy() or "py-spy", pid, form, folder / f"{name}.{suffix}", _seconds(request), _rate(request)
        )
        for subject in _subjects(request, scene)
        for pid, name in _processes(subject)
        for form, suffix, _ in _FORMATS
    )


def record_command(py_spy: str, pid: int, form: str, target: Path, seconds: float, rate_hz: int) -> tuple[str, ...]:
    """Sample one process, never pausing it; pure."""
    return (
        py_spy, "record", "--nonblocking", "--idle", "--threads", "--format", form, "--rate", str(rate_hz),
        "--duration", str(max(1, round(seconds))), "--output", str(target), "--pid", str(pid),
    )  # fmt: skip


def collect(request: Request, scene: Scene, window: Window) -> Collected:
    """Record, wait, bring what came; a worker that ended meanwhile is a note, ranks none of which can be read an error."""
    subjects = _subjects(request, scene)
    seconds = float(max(1, round(_seconds(request))))
    commands = command(request, scene, window.folder)
    with ThreadPoolExecutor(len(commands)) as pool:
        window.opened()
        running = [pool.submit(window.run, one, seconds + LATE_SECONDS, None) for one in commands]
        began = window.clock()
        while not all(one.done() for one in running):
            window.tell(f"recording {min(seconds, window.clock() - began):.0f} of {seconds:g} s")
            _wait(window, running)
        window.closed()
    finished = {one[-3]: future.result() for one, future in zip(commands, running, strict=True)}
    files = tuple(file for subject in subjects for file in _files(subject, window.folder))
    if not any(file.pid == subject.pid for subject in subjects for file in files):
        raise _failed(subjects[0], finished[commands[0][-3]], scene)
    notes = (*_choice(request, scene), *(note for subject in subjects for note in _notes(subject, files)))
    return Collected(files, seconds, notes, summary=f"{len(files)} files, {_rate(request)} samples a second")


def _wait(window: Window, running: list["Future[Finished]"]) -> None:
    """Until something is worth a look; when the job has ended py-spy ends by itself, with what it has."""
    try:
        window.wait(_LOOK_SECONDS)
    except CaptureFailed:
        for one in running:
            one.result()


def _subjects(request: Request, scene: Scene) -> tuple[Subject, ...]:
    """The ranks that were named, otherwise one."""
    wanted = scene.wanted(request)
    if not wanted:
        raise CaptureRefused("this machine has no rank of that number", "perfwatch ps lists the ranks")
    if not request.ranks:
        return (_meant(request, scene)[0] or wanted[0],)
    if len(wanted) > MOST_RANKS:
        raise CaptureRefused(f"{len(wanted)} ranks at once are too many: {MOST_RANKS} at most", "--rank 0 records one")
    return wanted


def _meant(request: Request, scene: Scene) -> tuple[Subject | None, str]:
    """The rank that a request without numbers means, and why; None where nothing points at one."""
    named = () if request.pid is None else (request.pid,)
    for pids, why in ((named, f"PID {request.pid} was given"), (scene.blamed, "it is the culprit")):
        for pid in pids:
            for one in scene.subjects:
                if pid in (one.pid, *one.workers):
                    return one, why
    return None, "it is the first"


def _choice(request: Request, scene: Scene) -> tuple[str, ...]:
    """Which rank was taken, where there was a choice."""
    if request.ranks or len(scene.subjects) < 2:
        return ()
    (taken,) = _subjects(request, scene)
    name = f"rank {taken.rank}" if taken.rank is not None else f"pid {taken.pid}"
    why = _meant(request, scene)[1]
    return (f"{name} of {len(scene.subjects)} ranks was recorded ({why}); another one: --rank N",)


def _processes(subject: Subject) -> list[tuple[int, str]]:
    """The rank and its workers, each with the name of its files."""
    name = f"rank{subject.rank}" if subject.rank is not None else f"pid{subject.pid}"
    return [(subject.pid, name), *((pid, f"{name}-worker{pid}") for pid in subject.workers[:MOST_WORKERS])]


def _files(subject: Subject, folder: Path) -> list[File]:
    found = []
    for pid, name in _processes(subject):
        for _, suffix, viewer in _FORMATS:
            path = folder / f"{name}.{suffix}"
            if path.is_file() and (size := path.stat().st_size):
                path.chmod(0o600)  # py-spy writes with the umask of the user
                found.append(File(path=str(path), size_bytes=size, pid=pid, rank=subject.rank, opens_with=viewer))
            else:
                path.unlink(missing_ok=True)
    return found


def _notes(subject: Subject, files: tuple[File, ...]) -> list[str]:
    notes = []
    there = {file.pid for file in files}
    missing = [str(pid) for pid, _ in _processes(subject)[1:] if pid not in there]
    if subject.pid not in there:
        notes.append(f"nothing of rank {subject.rank}: it ended, or could not be read")
    if missing:
        notes.append(f"nothing of worker {', '.join(missing)}: it ended, or could not be read")
    if len(subject.workers) > MOST_WORKERS:
        notes.append(f"{MOST_WORKERS} of {len(subject.workers)} workers were recorded: they run the same code")
    return notes


def _failed(subject: Subject, finished: Finished, scene: Scene) -> CaptureFailed:
    problem = Stacks(proc=scene.proc).failure(subject.pid, finished)
    if isinstance(problem, Unavailable):
        return CaptureFailed(problem.reason, problem.advice)
    return CaptureFailed(f"py-spy could not follow pid {subject.pid}: {problem.message}", "try again: the stack moved")


def _seconds(request: Request) -> float:
    return request.seconds if request.seconds is not None else SECONDS


def _rate(request: Request) -> int:
    text = request.options.get("rate", str(RATE_HZ))
    if not text.isdecimal() or not 1 <= int(text) <= MOST_RATE_HZ:
        raise CaptureRefused(f"--rate {text}: from 1 to {MOST_RATE_HZ} samples a second", f"--rate {RATE_HZ}")
    return int(text)
