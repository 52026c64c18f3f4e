"""A job on many hosts for tests: simulated ones, and recorded ones whose ranks are put on hosts of their own."""

import sys
from pathlib import Path

import msgspec

from perfwatch.fleet.merge.compacting import compact, numbered
from perfwatch.fleet.merge.hosts import HostReport
from perfwatch.fleet.merge.job_wide import judge_hosts
from perfwatch.fleet.merge.merging import Part, merge
from perfwatch.fleet.merge.snapshot import JobView
from perfwatch.jobs.identity import identity_of
from perfwatch.recording.recording import Record, Recording
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Communicator
from tests.sessions import session

sys.path.append(str(Path(__file__).parents[2] / "scripts"))  # the simulation serves the benchmark too

from simulated_fleet import snapshots


def simulated(hosts: int, stuck_rank: int | None = None, ranks_a_host: int = 8) -> list[Part]:
    """Every rank in one all_reduce; the worker of ``stuck_rank`` sleeps."""
    made = snapshots(hosts, stuck_rank, ranks_a_host)
    return [Part(one.host, one.jobs[0]) for one in made]


def reports(parts: list[Part], *others: HostReport) -> list[HostReport]:
    """All parts answered."""
    return [*(HostReport(host=part.host, state="answered", ranks=part.view.ranks) for part in parts), *others]


def judged(parts: list[Part], *others: HostReport) -> Verdict:
    """The verdict for the whole job."""
    asking = session(conditions=parts[0].view.session.conditions)
    return judge_hosts(merge(parts, asking), parts, reports(parts, *others))[0]


def _seen_from(record: Record, pid: int) -> Record:
    """What RAS says of a communicator, as it is heard on the host of one rank: only that one is a process of this host."""
    if not isinstance(record.reading, Communicator):
        return record
    members = tuple(msgspec.structs.replace(one, local=one.local and one.pid == pid) for one in record.reading.members)
    return Record(record.at, msgspec.structs.replace(record.reading, members=members))


def apart(recording: Recording, at: float) -> list[Part]:
    """The job of one machine as if each of its ranks ran on a host of its own, ``node-0``, ``node-1`` ..."""
    job = Case(History(recording.records, at), recording.session, recording.events).job
    parts = []
    for number, rank in enumerate(job.ranks):
        others = {m.pid for m in job.members.values() if m.rank_pid not in (None, rank.pid)}
        records = [
            _seen_from(one, rank.pid) for one in recording.records if getattr(one.reading, "pid", 0) not in others
        ]
        case = Case(History(records, at), recording.session, recording.events)
        kept, left_out = compact(case)
        view = JobView(
            identity=identity_of(case.job),
            session=recording.session,
            end=at,
            verdict=judge(case),
            ranks=tuple(sorted(numbered(case).values())),
            numbered=case.job.numbered,
            records=kept,
            left_out=left_out,
        )
        parts.append(Part(f"node-{number}", view))
    return parts
