"""What every capture is: a real profiler, for a bounded window, on the live job; and the records that go with it.

``Request`` is what was asked for, ``Scene`` is the job as it stands, ``Window`` is what a capture may use to work,
``Outcome`` is what came of it. Requests and outcomes travel as JSON between a command, the watcher and its helper.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.external import Finished
from perfwatch_probes.guest import Guests

MOST_BYTES = 64 * 2**20  # what one capture may leave on disk, all ranks together
CUPTI, COUNTERS, PTRACE = "cupti", "counters", "ptrace"  # what only one profiler at a time can hold


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. Neither ``steps`` nor ``seconds``: the capture's own default window."""

    kind: str
    steps: int | None = None
    seconds: float | None = None
    ranks: tuple[int, ...] = ()  # none named: every rank
    pid: int | None = None  # the process that the user named; a capture of one rank takes that one's
    options: dict[str, str] = {}  # of this kind alone, as in ``OPTIONS``; a switch that is on is "yes"
    most_bytes: int = MOST_BYTES
    asked_by: str = "command"  # command, signal, rule


class File(msgspec.Struct, frozen=True, kw_only=True):
    """One file that a capture brought back, in the session's ``captures`` folder."""

    path: str
    size_bytes: int
    pid: int | None = None
    rank: int | None = None
    opens_with: str = ""  # the viewer, in words


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a request; also the facts of the session's ``capture`` event.

    ``error`` is empty when it worked; otherwise ``exit_code`` says of what kind it is (``perfwatch.errors``).
    """

    kind: str
    error: str = ""
    advice: str = ""
    exit_code: int = 0
    files: tuple[File, ...] = ()
    notes: tuple[str, ...] = ()  # what was different from what was asked for
    window_seconds: float | None = None
    total_seconds: float = 0.0
    cost: str = ""  # what the window cost the job, a sentence
    summary: str = ""  # what the file says, for a terminal
    report: dict[str, object] = {}  # the same, for a program
    readings: tuple[dict[str, object], ...] = ()  # evidence, as ``perfwatch_probes.readings`` has it


@dataclass(frozen=True)
class Subject:
    """One rank of the job, on this machine. ``workers``: its DataLoader workers that live."""

    pid: int
    start_ticks: int
    rank: int | None = None
    uid: int | None = None
    workers: tuple[int, ...] = ()
    torch_loaded: bool | None = None


@dataclass(frozen=True)
class Scene:
    """The job when the capture is asked for.

    Args:
        subjects: the ranks that live, in rank order; of those, ``wanted`` gives the ones that a request names.
        armed: by kind, what ``run`` prepared for it (``perfwatch.processes.armed``): an endpoint, a session's name ...
        state: of the newest verdict: hung, slow, busy, healthy, inconclusive; with ``cause``, and "" for unknown.
        blamed: the ranks that the newest verdict blames, by pid.
        suspected: what the newest verdict suspects, if it is inconclusive: "hung" forbids what would hang as well.
        place: the agent's folder, when the job was started armed (step counts lie there).
        environment: of perfwatch, not of the job (PATH, HOME, TMPDIR).
        proc: root of /proc.
        guests: know as whom each process acts.
    """

    subjects: tuple[Subject, ...]
    armed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    state: str = ""
    cause: str = ""
    blamed: tuple[int, ...] = ()
    suspected: str = ""
    place: AgentFolder | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    proc: Path = Path("/proc")
    guests: Guests = field(default_factory=Guests, compare=False)

    def wanted(self, request: Request) -> tuple[Subject, ...]:
        """The subjects that a request means: those of the named ranks, or all."""
        if not request.ranks:
            return self.subjects
        return tuple(one for one in self.subjects if one.rank in request.ranks)

    @property
    def may_be_hung(self) -> bool:
        """True if the job hangs, or is suspected to."""
        return "hung" in (self.state, self.suspected)


class Window(Protocol):
    """What a capture works with; each call is bounded and dies with us. Tests give their own."""

    folder: Path  # private, empty, in the session: files go here
    deadline_seconds: float  # for all of ``collect``, from its beginning

    def run(
        self, command: Sequence[str], deadline_seconds: float, environment: Mapping[str, str] | None = None
    ) -> Finished:
        """Run a program to its end or to the deadline; ``returncode`` is None when it was late. Never a shell."""
        ...

    def wait(self, seconds: float) -> None:
        """Let the window pass. Ends early, with CaptureFailed, when no rank of the capture lives any more."""
        ...

    def opened(self) -> None:
        """Say that the profiler records from now on: steps until ``closed`` are those of the window."""
        ...

    def closed(self) -> None:
        """Say that it records no more."""
        ...

    def tell(self, text: str) -> None:
        """One line on what goes on, for the user who waits."""
        ...

    @property
    def clock(self) -> Callable[[], float]:
        """Monotonic seconds."""
        ...


@dataclass(frozen=True)
class Collected:
    """What ``collect`` brings back; ``files`` lie in the window's folder."""

    files: tuple[File, ...]
    window_seconds: float | None = None
    notes: tuple[str, ...] = ()
    summary: str = ""
    report: Mapping[str, object] = field(default_factory=dict)
    readings: tuple[Mapping[str, object], ...] = ()


class Capture(Protocol):
    """One kind of capture: a module of this package with these names."""

    NAME: str  # as in ``perfwatch capture NAME``
    SUMMARY: str  # one line of help
    DISTURBS: str  # what it costs the job, measured, in words
    USES: frozenset[str]  # of CUPTI, COUNTERS, PTRACE: what another profiler must not hold meanwhile
    TRIGGERED_BY: str  # "timeline", "kernels" or "": which signals mean it, when it is armed
    OPTIONS: Mapping[str, str]  # ``--name`` (a switch) or ``--name VALUE`` to its help; the command offers them

    def belongs_to_the_user(self, scene: Scene) -> bool:
        """True if it works through what the job's user has made: then it is made as that user, wherever that is not us."""
        ...

    def available(self, request: Request, scene: Scene) -> None:
        """Return when it can be done here and now; raise CaptureUnavailable or CaptureRefused, with the exact fix."""
        ...

    def estimated_bytes(self, request: Request, scene: Scene) -> int:
        """What it may need on disk while it works: the pre-flight check asks for twice that."""
        ...

    def command(self, request: Request, scene: Scene, folder: Path) -> tuple[tuple[str, ...], ...]:
        """The exact programs that it runs, in order; none where nothing is run. Pure."""
        ...

    def collect(self, request: Request, scene: Scene, window: Window) -> Collected:
        """Open the window, close it, bring the files. May block: it runs in a helper that is killed when late.

        Raises CaptureFailed; the job must be as it was before whichever way this ends.
        """
        ...
