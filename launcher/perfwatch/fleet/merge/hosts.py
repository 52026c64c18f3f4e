"""What became of each host that was asked about a job: one that does not answer is evidence, and not an error."""

from collections.abc import Iterable

import msgspec

SHOWN_SKEW_SECONDS = 2.0  # a clock that differs by less may differ by what the answer took to arrive
AS_OWNER = "ask as the job's user, or as root"

# answered: with its part of the job.            no_job: reached, and no process of this job is there.
# silent: no answer in time, or not reached.     failed: reached, and perfwatch could not look there.
# garbled: what it answered is no snapshot.      double: the machine that another name led to already.
STATES = ("answered", "no_job", "silent", "failed", "garbled", "double")


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """One host. ``skew_seconds``: by how much its clock is ahead of ours (negative: behind); None: not known.

    hidden: processes that run the job's program there and may not be looked into; early: it was given up before the deadline,
    for nearly all others had answered: it may only be slow.
    """

    host: str
    state: str
    reason: str = ""
    advice: str = ""
    ranks: tuple[int, ...] = ()
    hidden: int = 0
    early: bool = False
    skew_seconds: float | None = None
    left_out: int = 0
    folder: str = ""  # where its recording lies, on that host
    verdict: str = ""  # its own, about its part alone: "hung stuck_worker"
    summary: str = ""
    confidence: float = 0.0

    @property
    def unclear(self) -> bool:
        """True if ranks of the job may be there that were not seen."""
        return self.hidden > 0 or self.state in ("failed", "garbled")

    @property
    def skewed(self) -> bool:
        """True if its clock differs by so much that the report says so."""
        return self.skew_seconds is not None and abs(self.skew_seconds) >= SHOWN_SKEW_SECONDS


def names(reports: Iterable[HostReport], *states: str) -> tuple[str, ...]:
    """The hosts in one of these states, in the order in which they were asked."""
    return tuple(report.host for report in reports if report.state in states)
