"""What the rules about benign long phases share: a rank that makes no step, in a known phase, with something that moves."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import restarts
from perfwatch.triage.moving.motion import Motion, motion
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.slowness import Line
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Culprit, Finding
from perfwatch_probes import readings as r

WINDOW_SECONDS = 6.0
FEW_SAMPLES = 6
MOVES_SHARE = 0.02  # of a core: above it a thread does something


@dataclass(frozen=True)
class Phase:
    """What one rank's training thread has been at for the last seconds."""

    rank: Member
    tid: int
    profile: Profile
    motion: Motion

    @property
    def runs(self) -> float:
        """Share of a core, waiting for one included."""
        return self.motion.wanted_share

    def written_bytes(self, case: Case) -> int:
        """Bytes that its thread itself wrote over the window."""
        grown = case.history.growth(
            r.Thread, self.rank.pid, self.tid, of=lambda t: t.written_chars, seconds=WINDOW_SECONDS
        )
        return int(grown[0]) if grown else 0

    def grown_bytes(self, case: Case) -> int:
        """Bytes that this rank's files grew by, or its thread wrote if that is more, over the window."""
        files = 0.0
        for key in case.history.of(r.FileGrowth, self.rank.pid):
            grown = case.history.growth(
                r.FileGrowth, *key, of=lambda f: float(f.size_bytes), seconds=2 * WINDOW_SECONDS
            )
            files += grown[0] if grown else 0.0
        return max(self.written_bytes(case), int(files))

    def write_calls(self, case: Case) -> int:
        """Write calls of the thread itself over the window (a slow save counts calls, not bytes)."""
        grown = case.history.growth(
            r.Thread, self.rank.pid, self.tid, of=lambda t: t.write_calls, seconds=WINDOW_SECONDS
        )
        return int(grown[0]) if grown else 0

    def finding(self, case: Case, line: Line, confidence: float, /, **facts: Any) -> Finding:
        """A busy finding about this rank."""
        frame = self.profile.top_line()
        culprit = Culprit(pid=self.rank.pid, rank=self.rank.rank, tid=self.tid, frame=show(frame))
        found = line.finding(case, (culprit,), confidence, seen=self.profile, runs=self.runs, **facts)
        return msgspec.structs.replace(found, summary=found.summary + (f" at {show(frame)}" if frame else ""))


def phases(case: Case, moving: bool = False) -> Iterator[Phase]:
    """Every living rank that makes no step now and was looked at often enough; none while the launcher restarts them.

    A rank that waits for the GIL, which somebody else keeps, is in no phase of its own.

    With ``moving``, those that seem to make steps as well.
    """
    if restarts(case) is not None:
        return
    for rank in case.ranks:
        now = case.progress[rank.pid]
        seen = case.profile(rank, WINDOW_SECONDS)
        if rank.pid in case.chains and "gil" in case.chains[rank.pid].through:
            continue
        if (moving or now.kind != "moving") and seen.samples >= FEW_SAMPLES:
            yield Phase(rank, now.thread, seen, motion(case.history, rank.pid, now.thread, WINDOW_SECONDS))
