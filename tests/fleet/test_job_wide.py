"""Many hosts, one verdict: the rank that everybody waits for is named whatever host it is on, and nothing is guessed."""

import sys
from types import FrameType
from typing import Any

import msgspec
import pytest

from perfwatch.fleet.merge.hosts import HostReport
from perfwatch.fleet.merge.job_wide import judge_hosts
from perfwatch.fleet.merge.merging import Part, merge
from perfwatch.gauntlet.recorded import expected_of
from perfwatch.recording.recording import Record
from perfwatch.report.folding import as_text
from perfwatch.triage.diagnose import SURE, diagnose
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Process, Stack, Thread
from tests.fleet.parts import apart, judged, reports, simulated
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session

PAGE_LINES = 60
# Cases of several ranks, and a few of one, whose witnesses are all about processes: several hosts can show them.
DISTRIBUTED = (
    "stalled_collective/fires/stalled_collective",
    "stalled_collective/fires/stalled_collective-loader-quiet",
    "stalled_collective/fires/stalled_collective-quiet",
    "stalled_collective/lookalike/ranks_in_step",
    "mismatched_collective/fires/both_ranks_receive",
    "mismatched_collective/fires/mismatched_collective",
    "mismatched_collective/fires/three_ranks",
    "mismatched_collective/lookalike/busy_rank_zero_saves",
    "straggling_rank/fires/straggling_rank",
    "straggling_rank/fires/straggling_rank_sleep",
    "blocked_rendezvous/fires/blocked_rendezvous",
    "blocked_rendezvous/lookalike/busy_late_rank",
    "checkpointing/fires/checkpoint_within_a_bandwidth",
    "stopped/fires/stopped",
    "dead_worker/fires/dead_worker",
    "stuck_kernel/fires/stuck_kernel-backward",
    "stuck_kernel/lookalike/long_kernels",
    "out_of_memory/fires/out_of_memory",
    "exposed_communication/fires/exposed_communication",
    "straggling_rank/fires/straggling_rank-loader",
    "wedged_collective/fires/wedged_collective",
    "exposed_communication/fires/exposed_communication-nccl",
    "exposed_communication/lookalike/ranks_in_step-nccl",
    "mismatched_collective/fires/mismatched_collective-nccl-order",
    "stalled_collective/fires/stalled_collective-nccl",
    "stalled_collective/fires/stalled_collective-nccl-dead",
    "stopped/fires/stopped-nccl",
    "straggling_rank/fires/straggling_rank-nccl",
    "wedged_collective/lookalike/busy_rank_zero_saves-nccl",
)


@pytest.mark.parametrize("case", DISTRIBUTED)
def test_ranks_on_hosts_of_their_own_get_the_verdict_that_they_get_on_one_machine(case: str) -> None:
    """State, cause and culprits, each on its host: what a host leaves out of its answer was not needed."""
    recording, at = load_case(RECORDINGS / case), expected_of(RECORDINGS / case).at
    at = recording.end if at is None else at
    whole, verdict = diagnose(recording, at), judged(apart(recording, at))

    def who(one: Verdict) -> list[tuple[int, int | None, str | None]]:
        return sorted((c.pid, c.worker_pid, c.frame) for c in one.culprits)

    assert (verdict.state, verdict.cause) == (whole.state, whole.cause)
    assert who(verdict) == who(whole)
    assert all(culprit.host for culprit in verdict.culprits)


def test_the_worker_of_rank_300_of_512_is_named_with_its_host_and_line() -> None:
    """And everything that is said of it fits on a page."""
    parts = simulated(64, stuck_rank=300)
    verdict, folded = judge_hosts(merge(parts, session()), parts, reports(parts))
    (culprit,) = verdict.culprits

    assert (verdict.state, verdict.cause, verdict.coverage.ranks_seen) == ("hung", "stalled_collective", 512)
    assert (culprit.rank, culprit.host, culprit.worker_pid) == (300, "node-37", 2000)
    assert culprit.frame == "__getitem__ (train.py:31)"
    assert "DataLoader worker 2000 on node-37" in verdict.summary
    assert len(verdict.wait_chain) <= 4
    assert "as do 510 other ranks" in verdict.wait_chain[0].waits_for
    assert "ranks 0-299,301-511 (511 of 512)" in as_text(folded)
    assert len(as_text(folded).splitlines()) <= PAGE_LINES


def test_the_work_grows_with_the_ranks_and_no_faster() -> None:
    """Counted in lines, which no busy machine changes, those of loops within one call too: eight times the ranks, eight times the lines."""

    def lines(hosts: int) -> int:
        parts = simulated(hosts, stuck_rank=3)
        counted = 0

        def count(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal counted
            counted += 1
            return count

        sys.settrace(count)
        try:
            judged(parts)
        finally:
            sys.settrace(None)
        return counted

    lines(1)  # fills the caches of what a frame means
    assert lines(96) / lines(12) < 8.5  # a list searched for each rank makes 12


def test_a_host_that_is_silent_is_to_blame_where_everybody_waits_for_its_ranks() -> None:
    """Its ranks are named, with the host, and less surely than if they had been seen."""
    *parts, lost = simulated(4)
    silent = HostReport(host=lost.host, state="silent", reason="no answer within 30 s", advice="ssh node-3")
    verdict = judged(parts, silent)

    assert (verdict.state, verdict.cause, verdict.owner) == ("hung", "stalled_collective", "node")
    assert verdict.confidence <= 0.85
    assert [(c.rank, c.host) for c in verdict.culprits] == [(rank, "node-3") for rank in range(24, 32)]
    assert "rank 24-31 was not found on any host, and node-3 does not answer" in verdict.summary
    assert any(one.witness == "host node-3" for one in verdict.missing)


def test_a_host_without_a_process_of_the_job_is_suspected_and_not_blamed() -> None:
    """It may be a login node, or a spare one, and the ranks on a host that nobody named."""
    *parts, _ = simulated(4)
    verdict = judged(parts, HostReport(host="login", state="no_job", reason="no process of the job is there"))

    assert verdict.state == "inconclusive"
    assert verdict.suspect is not None
    assert "rank 24-31 was not found on any host, and login has no process of this job" in verdict.summary
    assert {culprit.host for culprit in verdict.culprits} == {None}


def test_ranks_that_nobody_was_asked_about_are_no_evidence() -> None:
    """All that were asked have answered: the absent rank may do well elsewhere."""
    *parts, _ = simulated(4)
    verdict = judged(parts)

    assert verdict.state == "inconclusive"
    assert any(one.witness == "ranks" and "24-31" in one.reason for one in verdict.missing)


def test_where_all_hosts_of_the_job_have_answered_a_rank_that_is_on_none_has_ended() -> None:
    """Slurm knows all nodes of its job."""
    *parts, _ = simulated(4)
    verdict, _ = judge_hosts(merge(parts, session()), parts, reports(parts), complete=True)

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert "rank 24-31 was not found on any host, and all hosts of the job have answered" in verdict.summary


def test_a_host_of_the_job_without_a_process_of_it_is_told_and_no_culprit() -> None:
    """A spare node of the allocation, or the pod of an earlier try: which host had the ranks nobody has seen."""
    *parts, _ = simulated(4)
    spare = HostReport(host="node-9", state="no_job", reason="the pod is Failed (Error)")
    verdict, _ = judge_hosts(merge(parts, session()), parts, reports(parts, spare), complete=True)

    assert verdict.state == "hung"
    assert "it has ended (node-9 has no process of this job)" in verdict.summary
    assert {culprit.host for culprit in verdict.culprits} == {None}


def test_ranks_that_may_not_be_looked_into_have_not_ended() -> None:
    """Their host answers with its other ranks, and with how many processes of the program it could not read."""
    *parts, last = simulated(4)
    hiding = HostReport(host=last.host, state="answered", ranks=(24,), hidden=7)
    told = [*reports(parts), hiding]
    verdict, _ = judge_hosts(merge(parts, session()), parts, told, complete=True)

    assert verdict.state == "inconclusive"
    assert any("rank 24-31 may be on node-3" in one.reason for one in verdict.missing)
    assert any(one.reason.startswith("7 processes that run the job's program") for one in verdict.missing)


def test_a_silent_host_is_not_blamed_for_ranks_that_a_host_nobody_could_look_at_may_have() -> None:
    """One is down, and on the other perfwatch is not installed."""
    *parts, near, far = simulated(4)
    verdict = judged(
        parts,
        HostReport(host=near.host, state="silent", reason="no answer within 33 s"),
        HostReport(host=far.host, state="failed", reason="perfwatch: not found"),
    )

    assert verdict.state == "inconclusive"


def test_a_silent_host_is_not_blamed_for_more_ranks_than_a_host_has() -> None:
    """Two hosts' ranks are absent, and one host is silent: another one was not asked."""
    *parts, lost, _ = simulated(4)
    verdict = judged(parts, HostReport(host=lost.host, state="silent", reason="no answer within 33 s"))

    assert verdict.state == "inconclusive"


def test_a_host_that_perfwatch_could_not_look_at_is_no_evidence() -> None:
    """A missing installation says nothing of the job."""
    *parts, lost = simulated(4)
    verdict = judged(parts, HostReport(host=lost.host, state="failed", reason="perfwatch: not found"))

    assert verdict.state == "inconclusive"
    assert any(one.witness == "host node-3" for one in verdict.missing)


def test_ranks_that_are_numbered_from_one_are_all_there() -> None:
    """There is no rank 0 that a spare host could have."""

    def later(record: Record) -> Record:
        who = record.reading
        if not isinstance(who, Process) or who.rank is None:
            return record
        return Record(record.at, msgspec.structs.replace(who, rank=who.rank + 1))

    parts = [
        Part(part.host, msgspec.structs.replace(part.view, records=tuple(map(later, part.view.records)),
                                                ranks=tuple(rank + 1 for rank in part.view.ranks)))
        for part in simulated(4)
    ]  # fmt: skip
    verdict = judged(parts, HostReport(host="spare", state="silent", reason="no answer"))

    assert verdict.state == "inconclusive"
    assert not any("seen nowhere" in one.reason for one in verdict.missing)


def test_with_the_culprit_in_sight_a_silent_host_is_not_blamed() -> None:
    """The stuck worker of a host that answers is named for what it is."""
    *parts, lost = simulated(4, stuck_rank=3)
    verdict = judged(parts, HostReport(host=lost.host, state="silent", reason="no answer within 30 s"))

    assert (verdict.state, [c.worker_pid for c in verdict.culprits]) == ("hung", [2000])
    assert verdict.culprits[0].host == "node-0"


def test_seven_of_eight_ranks_unreadable_is_no_verdict() -> None:
    """Their stacks are missing (ptrace denied): the one that is seen waits, and for whom nobody can say."""
    (part,) = simulated(1)
    seen = next(one.reading.pid for one in part.view.records if isinstance(one.reading, Stack))
    kept = tuple(
        one for one in part.view.records if not isinstance(one.reading, Stack | Thread) or one.reading.pid == seen
    )
    verdict = judged([Part(part.host, msgspec.structs.replace(part.view, records=kept))])

    assert verdict.state == "inconclusive"
    assert verdict.coverage.ranks_seen == 8


def test_a_rank_that_two_hosts_claim_is_said() -> None:
    """Both hosts were started as the first: the evidence names rank and hosts."""
    first, second = simulated(2, ranks_a_host=4)
    again = Part("node-x", first.view)
    verdict = judged([first, again, second])

    assert any("node-0, node-x" in one.observed and one.entity == "rank 0" for one in verdict.evidence)


@pytest.mark.parametrize("ticks", [-1_000, 10**9])
def test_of_two_processes_with_one_rank_the_younger_counts_whatever_their_hosts_count_from(ticks: int) -> None:
    """A host that left the job some hours ago still has its ranks, and was up for longer or shorter than the others."""
    (_, left), parts = simulated(2), simulated(2, stuck_rank=9)

    def older(one: Record) -> Record:
        reading = one.reading
        if not isinstance(reading, Process) or reading.age_seconds is None:
            return one
        age, began = reading.age_seconds + 7200.0, reading.start_ticks + ticks
        return Record(one.at, msgspec.structs.replace(reading, age_seconds=age, start_ticks=began))

    view = msgspec.structs.replace(left.view, records=tuple(map(older, left.view.records)))
    verdict = judged([*parts, Part("node-left", view)])

    assert [(c.rank, c.host, c.worker_pid) for c in verdict.culprits] == [(9, "node-1", 2000)]
    assert SURE <= verdict.confidence <= 0.7


def test_hosts_whose_looks_ended_at_other_times_are_compared_by_age() -> None:
    """One session is an hour old and another began just now: all ranks have been silent for as long as their own kernel says."""
    parts = simulated(4, stuck_rank=9)
    old = parts[0].view
    later = tuple(msgspec.structs.replace(one, at=one.at + 3600.0) for one in old.records)
    moved = msgspec.structs.replace(
        old, records=later, end=old.end + 3600.0, session=msgspec.structs.replace(old.session, created=1.0)
    )
    verdict = judged([Part("node-0", moved), *parts[1:]])

    assert (verdict.cause, verdict.silent_seconds) == ("stalled_collective", judged(parts).silent_seconds)


def test_ranks_that_no_launcher_numbered_are_numbered_through() -> None:
    """Two hosts with a plain spawn each: rank 1 of the second is the fourth of the job, and that is said."""
    parts = [
        Part(part.host, msgspec.structs.replace(part.view, numbered=False)) for part in (*simulated(1), *simulated(1))
    ]
    merged = merge(parts, session())

    assert sorted(merged.present) == list(range(16))
    assert merged.counted


def test_a_pid_of_one_host_is_never_taken_for_that_of_another() -> None:
    """All hosts of the simulation use the same pids, and each process is found once for each host."""
    parts = simulated(16)
    merged = merge(parts, session())
    numbers = {one.reading.pid for one in merged.records if isinstance(one.reading, Stack)}

    assert len(numbers) == 16 * 8
    assert {merged.translation.pid(number) for number in numbers} == set(range(1000, 1008))
    assert {merged.translation.host(number) for number in numbers} == {part.host for part in parts}
