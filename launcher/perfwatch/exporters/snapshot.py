"""What is known of one watched job now, as it goes from the watch to the process that serves it."""

import msgspec

# Upper bounds of the step time buckets, in seconds: a factor of two apart.
STEP_BUCKETS = tuple(round(0.001 * 2**power, 3) for power in range(18))  # 1 ms to 131 s


class RankSteps(msgspec.Struct, frozen=True, array_like=True):
    """Steps that one process has counted; ``rank`` is its number where it has one."""

    rank: str
    steps: int


class Card(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one card did lately. Shares 0 to 1; None: it does not tell."""

    gpu: str
    uuid: str
    model: str = ""
    regime: str = "unknown"
    resident: float | None = None
    sm_active: float | None = None
    tensor: float | None = None
    dram: float | None = None
    power_watts: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None  # all that it has

    @property
    def memory_share(self) -> float | None:
        """Of its memory that is in use, 0 to 1."""
        used, size = self.memory_used_bytes, self.memory_bytes
        return None if used is None or not size else used / size


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job. Times are unix time. state is empty before the first verdict; ``told``: how often each state was told.

    command: empty where it is not to be served.
    """

    session: str
    mode: str
    root_pid: int
    command: str
    looked: float
    began: float = 0.0
    job: dict[str, str] = {}  # whose it is, by label; what is not known is left out
    state: str = ""
    cause: str = ""
    owner: str = ""
    action: str = ""
    confidence: float | None = None
    judged: float | None = None
    silent_since: float | None = None
    suspected: str = ""
    told: dict[str, int] = {}
    ranks: tuple[RankSteps, ...] = ()
    steps_wanted: int | None = None  # that the job says it will make
    ends_by: int | None = None  # when its scheduler ends it
    step_buckets: tuple[int, ...] = ()  # of STEP_BUCKETS and beyond, not cumulative
    step_seconds: float = 0.0  # of all steps that were timed
    cards: tuple[Card, ...] = ()
    own_cpu_seconds: float = 0.0
    own_memory_bytes: int = 0
    lost_lines: int = 0
    posted: int = 0
    not_posted: int = 0


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon knows of its node."""

    watched: int
    adopted: int
    recorded_bytes: int
