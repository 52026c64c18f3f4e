"""What one host says of its part of a job: a compact session that many hosts send to the one that asks.

A snapshot holds readings, not conclusions alone: the process that gathers the snapshots of all hosts runs the same triage over them as
if all ranks were on one machine (``perfwatch.fleet.merge.merging``, ``perfwatch.fleet.merge.job_wide``). What belongs to one machine
and to no rank (its memory, CPUs, disks, limits, kernel log) stays there: the host's own verdict speaks for it.
"""

import msgspec

from perfwatch.jobs.identity import Identity
from perfwatch.recording.recording import Record
from perfwatch.recording.session import Session
from perfwatch.verdict import Verdict

SCHEMA = "perfwatch.snapshot/1"


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One job as one host sees it.

    records: compact; ``at`` counts from the host's own beginning, ``end`` is the host's now on that clock.
    ranks: every rank that was seen here, dead ones included. numbered: its launcher numbered the ranks; otherwise they
    were counted from 0 on this host. hidden: processes that run its program here and may not be looked into.
    """

    identity: Identity
    session: Session
    end: float
    verdict: Verdict
    ranks: tuple[int, ...]
    numbered: bool = True
    records: tuple[Record, ...] = ()
    hidden: int = 0
    left_out: int = 0  # readings beyond the size that a snapshot may have
    folder: str = ""  # where the whole recording lies on that host


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs of one host. ``place``: boot id and pid namespace, for two names may lead to one machine.

    made: unix time on the host's own clock as this was written; only for telling how far clocks differ.
    """

    schema: str = SCHEMA
    version: str
    host: str
    place: str
    made: float
    jobs: tuple[JobView, ...] = ()
    hidden: int = 0  # Python processes that may not be looked into
    unwanted: int = 0  # jobs that are not the one that was asked for
    cpu_seconds: float = 0.0  # what looking cost there
