"""Everything that a rule may look at: the job, its chains, its profiles, read once from the recording and kept."""

import re
from collections.abc import Iterable
from functools import cached_property

from perfwatch.hang_timeout import HANG_TIMEOUT_SECONDS
from perfwatch.recording.recording import Event
from perfwatch.recording.session import Session
from perfwatch.triage.history import History, Seen
from perfwatch.triage.moving.motion import WINDOW_SECONDS, Motion, Moves, motion, moves, python_threads, was_at
from perfwatch.triage.moving.progress import Progress, StepClock, progress, step_clock
from perfwatch.triage.roles.job import Job, Member, read_job
from perfwatch.triage.shares.profile import Profile, lasting
from perfwatch.triage.shares.thresholds import MINUTE_SECONDS
from perfwatch.triage.waits.chain import Chain, follow
from perfwatch.triage.waits.devices import unmonitored
from perfwatch.verdict import Evidence, Missing
from perfwatch_probes import readings as r

PID = re.compile(r"\bpid \d+|/proc/\d+")
SOON_SECONDS = 5.0  # until then a thread that went on since its last stack is dumped again, if it can be
SERVES = "peers"  # the kind of edge from a rank that waits for the others to be done


class Case:
    """One job at one moment. Lazy: a rule that does not ask for the chains does not pay for them."""

    def __init__(
        self, history: History, session: Session, events: Iterable[Event] = (), job: Job | None = None
    ) -> None:
        self.at = history.at
        self.session = session
        self.history = history
        self._job = job  # known already, when nothing was read that could change it
        self.events = tuple(event for event in events if event.at <= history.at)

    @cached_property
    def patience_seconds(self) -> float:
        """How long a temporal end may be silent."""
        asked = self.session.conditions.get("patience_seconds")
        return float(asked) if isinstance(asked, int | float) else HANG_TIMEOUT_SECONDS

    @cached_property
    def apart_seconds(self) -> float:
        """How far apart the hosts of the job were looked at; 0 where it is looked at as one."""
        apart = self.session.conditions.get("apart_seconds")
        return float(apart) if isinstance(apart, int | float) else 0.0

    @property
    def merged(self) -> bool:
        """True if this is what several hosts have sent of one job, rather than a look of our own."""
        return "apart_seconds" in self.session.conditions

    @cached_property
    def job(self) -> Job:
        """Who is who."""
        return self._job or read_job(self.history)

    @cached_property
    def ranks(self) -> tuple[Member, ...]:
        """The ranks that live."""
        return tuple(rank for rank in self.job.ranks if rank.alive)

    @cached_property
    def progress(self) -> dict[int, Progress]:
        """By pid of the rank: does it go on?"""
        return {rank.pid: progress(self.history, rank, self.job) for rank in self.ranks}

    @cached_property
    def chains(self) -> dict[int, Chain]:
        """By pid of the rank: the way from its training thread to whatever it waits for."""
        return {
            rank.pid: follow(self.history, self.job, rank.pid, self.progress[rank.pid].thread) for rank in self.ranks
        }

    @cached_property
    def still_chains(self) -> tuple[Chain, ...]:
        """Chains of the ranks whose training thread does not move, and did not go on now and then either."""
        return tuple(
            chain
            for pid, chain in self.chains.items()
            if self.progress[pid].kind == "still"
            and not self._elsewhere(chain)
            and (chain.start.wait is None or not moves(self.history, pid, chain.start.tid).recurrent)
        )

    def _elsewhere(self, chain: Chain) -> bool:
        """True if the training thread went on since its last stack: what it waits for now the next one will tell."""
        last = self.history.latest(r.Stack, chain.start.pid, chain.start.tid)
        return chain.start.stack is None and last is not None and last.at >= self.at - SOON_SECONDS

    @cached_property
    def trainers(self) -> tuple[Member, ...]:
        """The ranks that live, without those that only serve the others until these are done (a parameter server)."""
        return tuple(rank for rank in self.ranks if SERVES not in self.chains[rank.pid].through)

    @cached_property
    def moving(self) -> bool:
        """True if every rank makes steps that is there to make any."""
        return bool(self.trainers) and all(self.progress[rank.pid].kind == "moving" for rank in self.trainers)

    def awaited_at_start(self, pid: int) -> bool:
        """True if other ranks wait at the rendezvous for this one, which is elsewhere: it has not begun to train."""
        waiting = [other for other, chain in self.chains.items() if chain.end.kind == "rendezvous"]
        return bool(waiting) and pid not in waiting

    def profile(self, rank: Member, seconds: float | None = None) -> Profile:
        """Where the training thread of a rank spends its time."""
        return lasting(self.history, rank.pid, self.progress[rank.pid].thread, seconds)

    def motion(self, rank: Member, seconds: float = WINDOW_SECONDS) -> Motion:
        """What moved about the training thread of a rank."""
        return motion(self.history, rank.pid, self.progress[rank.pid].thread, seconds)

    def moves(self, rank: Member) -> Moves:
        """When it was seen to go on."""
        return moves(self.history, rank.pid, self.progress[rank.pid].thread)

    def goes_on(self, rank: Member) -> bool:
        """True if it makes steps, or was seen to go on again and again from what it waits for."""
        return self.progress[rank.pid].kind == "moving" or self.moves(rank).recurrent

    def looks(self, rank: Member, seconds: float | None = None) -> list[Seen[r.Thread]]:
        """What the kernel said of it."""
        return self.history.series(r.Thread, rank.pid, self.progress[rank.pid].thread, seconds=seconds)

    def was_at(self, rank: Member, *any_of: str) -> bool:
        """True if it was ever seen at such work."""
        return was_at(self.history, rank.pid, self.progress[rank.pid].thread, *any_of)

    def beside(self, rank: Member) -> list[int]:
        """The other Python threads of its process."""
        return [tid for tid in python_threads(self.history, rank.pid) if tid != self.progress[rank.pid].thread]

    def worker_profiles(self, rank: Member, seconds: float | None = None) -> dict[int, Profile]:
        """By pid: where the main threads of a rank's DataLoader workers spend theirs (sampled ones only)."""
        found = {w.pid: lasting(self.history, w.pid, w.pid, seconds) for w in self.job.workers(rank.pid) if w.alive}
        return {pid: one for pid, one in found.items() if one.samples}

    def steps(self, rank: Member, seconds: float = MINUTE_SECONDS) -> StepClock | None:
        """The agent's count over the last ``seconds``."""
        return step_clock(self.history, rank.pid, seconds)

    def latest_host(self) -> Seen[r.Host] | None:
        """The newest reading of the machine."""
        return self.history.latest(r.Host)

    def saw(
        self, witness: str, entity: str, claim: str, observed: str, expected: str = "", at: float | None = None
    ) -> Evidence:
        """One piece of evidence, stamped with the moment it is about (default: now)."""
        return Evidence(
            witness=witness,
            entity=entity,
            claim=claim,
            observed=observed,
            expected=expected,
            at=round(self.at if at is None else at, 2),
        )

    @cached_property
    def missing(self) -> tuple[Missing, ...]:
        """Witnesses that could not be had, by the newest word of each probe about each entity.

        What differs in the process alone is said once, with the number of the others.
        """
        found: dict[tuple[str, str], list[r.ProbeCall]] = {}
        for key in self.history.entities(r.ProbeCall):
            seen = self.history.latest(r.ProbeCall, *key)
            if seen is not None and seen.reading.outcome not in ("ok", "absent"):
                alike = (seen.reading.probe, PID.sub("pid", seen.reading.reason))
                found.setdefault(alike, []).append(seen.reading)
        refused = tuple(
            Missing(
                witness=calls[0].probe,
                reason=calls[0].reason + (f" (and {len(calls) - 1} more alike)" if len(calls) > 1 else ""),
                advice=calls[0].advice,
            )
            for calls in found.values()
        )
        doubted = (Missing(witness="ranks", reason=self.job.doubt),) if self.job.doubt else ()
        return (*refused, *doubted, *unmonitored(self.history, [rank.pid for rank in self.ranks]))

    def lacks(self, witness: str) -> Missing | None:
        """Why a witness is missing, or None when it is not known to be."""
        return next((one for one in self.missing if one.witness == witness), None)
