"""What triage says: a Finding (a rule recognised its cause), an Abstention (it lacked a witness), and the Verdict made of them.

A recording keeps a ``Verdict`` as it is here. ``perfwatch.report.json`` makes of it the object that users get.
"""

from collections.abc import Iterable
from enum import Enum

import msgspec

SCHEMA = "perfwatch.verdict/1"
STATES = ("gone", "hung", "busy", "slow", "healthy", "inconclusive")
ACTIONS = ("restart", "replace_node", "wait", "fix_code", "none")
OWNERS = ("user_code", "data", "storage", "network", "fabric", "gpu", "node", "scheduler", "unknown")

NO_CONFIDENCE = "none"
IT_RUNS = "nothing: it runs"  # what a thread waits for that does not wait
SLEEP = "the end of its sleep"  # ... or that sleeps: with ``SLEEP_LEFT`` and a duration, if it is known when it wakes
SLEEP_LEFT = " in "
OF_THE_LIVING = (
    "perfwatch capture",
    "perfwatch attach",
    "perfwatch doctor",
    "perfwatch ps",
)  # next steps, of a job that runs
TO_APPEAR = " to appear"  # of a file for which a loop polls
NAPS = "the end of short sleeps"  # ... again and again


class Level(float, Enum):
    """How sure a finding is. The number is the share of such verdicts that is right at least (``scripts/calibrate`` measures it)."""

    LOW = 0.5  # a suspicion: noted beside a verdict, never the verdict itself
    MEDIUM = 0.65  # a verdict to be checked first: something that was not seen may explain the observations as well
    HIGH = 0.8
    CERTAIN = 0.95

    def __format__(self, form: str) -> str:
        """As a number, in every version of Python."""
        return format(float(self), form)

    @classmethod
    def of(cls, confidence: float) -> "Level":
        """The highest level that a confidence reaches."""
        return next((level for level, least in _REACHED if confidence >= least), cls.LOW)

    @property
    def word(self) -> str:
        """The level as it is printed."""
        return self.name.lower()


_REACHED = ((Level.CERTAIN, 0.9), (Level.HIGH, 0.8), (Level.MEDIUM, 0.6))


def confidence_word(confidence: float) -> str:
    """The level of a verdict's confidence as it is printed; ``none`` if it claims nothing."""
    return Level.of(confidence).word if confidence > 0.0 else NO_CONFIDENCE


class _Part(msgspec.Struct, frozen=True):
    """A piece of a verdict."""


class Evidence(_Part, frozen=True, kw_only=True):
    """One observation that the cause rests on; ``at`` is seconds since the session began."""

    witness: str  # the reading it comes from: stack, thread, socket, steps, cgroup, ...
    entity: str  # "pid 734", "pid 734 tid 758", "host", "eth0"
    claim: str  # what it shows, in words
    observed: str  # the value with its unit
    expected: str = ""  # what a healthy run would show
    at: float = 0.0


class Place(_Part, frozen=True, kw_only=True):
    """Where in a program: full path, line, and the text of that line if it was read (stripped, bounded, from the job: untrusted)."""

    function: str
    file: str
    line: int
    source: str | None = None


class Culprit(_Part, frozen=True, kw_only=True):
    """Who is to blame. ``frame`` reads ``function (file:line)``; ``place`` is the same in full, if a stack shows it."""

    pid: int
    rank: int | None = None
    worker_pid: int | None = None
    tid: int | None = None
    thread: str | None = None
    frame: str | None = None
    gpu: int | None = None
    host: str | None = None
    place: Place | None = None


class Link(_Part, frozen=True, kw_only=True):
    """One step of the wait chain: this thread waits for that. ``depth`` 0 is a victim at the start; siblings share a depth."""

    pid: int
    waits_for: str
    depth: int = 0
    tid: int | None = None
    rank: int | None = None
    frame: str | None = None
    silent_seconds: float | None = None
    host: str | None = None  # where the job has more than one
    place: Place | None = None


class Alternative(_Part, frozen=True, kw_only=True):
    """The nearest competing cause and what speaks against it (or would)."""

    cause: str
    refuted_by: str


class Missing(_Part, frozen=True, kw_only=True):
    """A witness that was not there, why, and how to get it next time."""

    witness: str
    reason: str
    advice: str = ""


class Suspect(_Part, frozen=True, kw_only=True):
    """A temporal cause whose patience still runs."""

    state: str
    cause: str
    silent_seconds: float
    decides_in_seconds: float


class Finding(_Part, frozen=True, kw_only=True):
    """A rule recognised its cause. ``confidence`` is a ``Level``."""

    cause: str
    state: str
    summary: str
    confidence: float
    owner: str = "unknown"
    culprits: tuple[Culprit, ...] = ()
    wait_chain: tuple[Link, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    next: tuple[str, ...] = ()
    silent_seconds: float | None = None
    decides_in_seconds: float = 0.0  # > 0: not decided yet, becomes ``suspect``
    lost_share: float | None = None  # slow: the share of the time that it explains; 1 where it is behind the others
    sub_cause: str | None = None  # gone: what the end is called, of the words that its cause has for its forms
    retry: str | None = None  # gone: whether the same command may succeed if started again: yes, no, after fixing


class Abstention(_Part, frozen=True, kw_only=True):
    """A rule that might apply but lacks a witness."""

    cause: str
    missing: tuple[Missing, ...]


Outcome = Finding | Abstention | None


class Coverage(_Part, frozen=True, kw_only=True):
    """Ranks seen against ranks that the job says it has."""

    ranks_seen: int
    world_size: int | None


class Spread(_Part, frozen=True, kw_only=True):
    """The middle value and the two that 5 % and 1 % of the values exceed."""

    p50: float
    p95: float
    p99: float


class CardFigures(_Part, frozen=True, kw_only=True):
    """How close one card is to what it can do. Shares are 0 to 1; rates are for dense 16-bit arithmetic in the tensor cores.

    unknown: why no peak can be given, empty where it is. hfu: hardware FLOPs utilisation, of the peak at the highest clock, and
    of the peak at the clock that the card runs at. power_capped: share of the looks under the power cap.
    """

    uuid: str
    name: str
    gpu: int | None = None
    rank: int | None = None
    unknown: str = ""
    tensor_tflops: Spread | None = None
    peak_tflops: float | None = None  # at the highest clock
    hfu_at_boost: Spread | None = None
    hfu_at_clock: Spread | None = None
    power_capped: float | None = None
    dram_share: Spread | None = None
    dram_gb_per_second: Spread | None = None
    dram_peak_gb_per_second: float | None = None


class ModelFigures(_Part, frozen=True, kw_only=True):
    """Model FLOPs utilisation: what the model needs for its tokens against what the cards could do in that time.

    peak_tflops: of one card, as on its data sheet where that is known. missing: why there is no figure.
    """

    mfu: Spread | None = None
    tokens_per_second: Spread | None = None
    step_seconds: Spread | None = None
    tflops_per_card: float | None = None
    peak_tflops: float | None = None
    cards: int | None = None
    missing: str = ""


class Efficiency(_Part, frozen=True, kw_only=True):
    """The figures of every card that the job uses, and of its model where the user has said what that is."""

    cards: tuple[CardFigures, ...] = ()
    model: ModelFigures | None = None


class Timeline(_Part, frozen=True, kw_only=True):
    """Seconds since the session began."""

    attached: float = 0.0
    suspected: float | None = None
    decided: float | None = None


class ObserverCost(_Part, frozen=True, kw_only=True):
    """What perfwatch itself used."""

    cpu_seconds: float = 0.0
    stack_dumps: int = 0
    target_paused_ms: float = 0.0


class JobLabels(_Part, frozen=True, kw_only=True):
    """Whose job it is: what an alert is routed by and an action aims at. None where nothing says it.

    The kernel says user, uid, host, pid, pod_uid and container_id, and the Slurm job where slurmd makes control groups; of a pod the
    kubelet says the names where /var/log/containers can be listed. All else is what the environment of the job claims: enough to route an
    alert, and nothing to trust.
    """

    user: str | None = None
    uid: int | None = None  # of its ranks; null where they are of several users
    host: str | None = None  # that was watched; null where the verdict is of several
    pid: int | None = None  # of the process at the top
    ranks: str | None = None  # that were seen: "0-7,9"
    world_size: int | None = None
    slurm_job_id: str | None = None
    slurm_job_name: str | None = None
    namespace: str | None = None  # of Kubernetes
    pod: str | None = None
    pod_uid: str | None = None
    container: str | None = None
    container_id: str | None = None
    run_id: str | None = None  # of torchrun
    wandb_run: str | None = None  # entity/project/run, as far as it is set in the environment


class Verdict(_Part, frozen=True, kw_only=True):
    """The one answer. Times are ISO 8601 UTC; the other fields are explained by their types above.

    confidence: the number of its ``Level``; 0 if nothing is claimed. action: what a machine may do about it, one of ``ACTIONS``;
    None where that cannot be said.
    """

    schema: str = SCHEMA
    state: str
    cause: str | None
    sub_cause: str | None = None  # with ``retry`` as of ``Finding``
    retry: str | None = None
    confidence: float
    summary: str
    owner: str
    at: str
    onset: str | None = None
    silent_seconds: float | None = None
    last_step: int | None = None
    coverage: Coverage
    culprits: tuple[Culprit, ...] = ()
    wait_chain: tuple[Link, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    missing: tuple[Missing, ...] = ()
    suspect: Suspect | None = None
    next: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    efficiency: Efficiency | None = None  # of a job that goes on and uses GPUs
    action: str | None = None
    job: JobLabels | None = None
    supersedes: str | None = None  # of a watched job: the cause that was told before, which this verdict replaces
    timeline: Timeline
    observer_cost: ObserverCost


def doing(awaited: str, *, many: bool = False) -> str:
    """What a thread does that waits for this (``Link.waits_for``), in words; ``many``: of several threads."""
    runs, sleeps, waits = ("run", "sleep", "wait") if many else ("runs", "sleeps", "waits")
    if awaited.startswith(NAPS):
        return f"{sleeps} repeatedly{awaited.removeprefix(NAPS)}"
    if awaited.startswith(SLEEP):
        return sleeps + awaited.removeprefix(SLEEP).replace(SLEEP_LEFT, " for another ", 1)
    if awaited.endswith(TO_APPEAR):
        return f"{'poll' if many else 'polls'} for {awaited.removesuffix(TO_APPEAR)}"
    return runs if awaited == IT_RUNS else f"{waits} for {awaited}"


def possible_after(steps: Iterable[str]) -> tuple[str, ...]:
    """Of the next steps those that make sense of a job that has ended."""
    return tuple(one for one in steps if not one.startswith(OF_THE_LIVING))
