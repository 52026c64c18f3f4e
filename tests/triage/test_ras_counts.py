"""NCCL's RAS service counts the collectives of each rank: what follows from the counts, and for how long an answer holds."""

import pytest
from msgspec import structs

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.nccl_report import parse as parse_report
from perfwatch_probes.readings import (
    Communicator,
    Frame,
    GroupMember,
    ProbeCall,
    Process,
    ProcessEnded,
    Reading,
    Stack,
    Thread,
    Wait,
)
from tests.probes.ras_answers import ras_answer
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
from tests.triage.group_looks import PIDS, accused, asleep, case, report, said

STALLED = ("stalled_collective", [1])
NO_ACCUSATION: tuple[None, list[int | None]] = (None, [])
OPERATIONS = {
    "2.24.3": "collective 42",
    "2.25.1": "collective 42",
    "2.26.6": "all_reduce 42",
    "2.27.7": "all_reduce 42",
    "2.30.7": "all_reduce 42",
}
VERSIONS = pytest.mark.parametrize("version", OPERATIONS)


@pytest.mark.parametrize(("version", "operation"), OPERATIONS.items())
def test_the_text_of_every_version_names_the_rank_that_is_behind(version: str, operation: str) -> None:
    """Recorded on two H200, also with an NCCL that has one counter for all kinds of collectives."""
    verdict = said(report("hung.txt", version), report("hung.txt", version))

    assert accused(verdict) == STALLED
    assert verdict.culprits[0].pid == PIDS[1]
    assert f"rank 1 never joined {operation}:" in verdict.summary
    assert "rank 0 waits for it" in verdict.summary


@VERSIONS
def test_two_texts_of_a_healthy_job_accuse_no_rank(version: str) -> None:
    """Whether the counts are level in both texts or grow between them, and for however long one text holds."""
    first, second = (report(f"healthy_{look}.txt", version) for look in (1, 2))

    assert accused(said(first, second)) == NO_ACCUSATION
    for look in (first, second):
        assert accused(said(look, look, apart_seconds=1.0)) == NO_ACCUSATION


@VERSIONS
def test_a_group_that_a_newer_text_does_not_name_has_caught_up(version: str) -> None:
    """The text lists only groups whose ranks' counts differ."""
    hung, level = report("hung.txt", version), report("healthy_2.txt", "2.25.1")

    assert accused(said(hung, hung)) == STALLED
    assert accused(said(hung, hung, level)) == NO_ACCUSATION


def test_of_a_large_group_the_one_that_is_behind_is_named_from_the_text() -> None:
    """The text names one of eight and tells the seven others in one line."""
    head, _, tail = ras_answer("2.26.6_hung.txt").partition("  Rank 0")
    text = head.replace("         2         2         2   R", "         8         8         8   R")
    text += "  7 ranks have launched up to operation 42\n  Rank 1" + tail.partition("  Rank 1")[2]
    look = [
        structs.replace(one, members=tuple(structs.replace(m, local=m.pid is not None) for m in one.members))
        for one in parse_report(text.replace("process 7691", f"process {PIDS[1]}"))
    ]
    verdict = said(look, look, world=8)

    assert accused(verdict) == STALLED
    assert verdict.culprits[0].pid == PIDS[1]
    assert "ranks 0, 2, 3, 4, 5, 6, 7 wait for it" in verdict.summary


def group(
    name: str,
    counts: tuple[int, ...] = (41, 40),
    pids: tuple[int, ...] = (PIDS[0], PIDS[1]),
    state: str = "running",
    hosts: tuple[str, str] = ("a", "a"),
) -> Communicator:
    """A group in whose counts the second rank is behind, or cannot be reached."""
    members = tuple(
        GroupMember(rank=rank, pid=pid, host=hosts[rank], local=True, state=state if rank else "running",
                    launched={"AllReduce": count} if state == "running" or not rank else {})
        for rank, (pid, count) in enumerate(zip(pids, counts, strict=True))
    )  # fmt: skip
    return Communicator(communicator=name, size=2, members=members, missing=int(state != "running"))


def counted(ranks: int, seconds: float, laggard: int) -> Verdict:
    """So many ranks whose stacks may not be read, one of which has made a call less than the others."""
    counts = {rank: 40 if rank == laggard else 41 for rank in range(ranks)}
    members = tuple(
        GroupMember(rank=rank, pid=PIDS.get(rank, 700 + rank), host="a", local=True, launched={"AllReduce": count})
        for rank, count in counts.items()
    )
    looks: list[list[Reading]] = [
        [
            Communicator(communicator="c", size=ranks, members=members),
            *map(asleep, range(ranks), [3.0 * number] * ranks),
        ]
        for number in range(int(seconds / 3.0 + 1))
    ]
    return said(*looks, world=ranks)


def test_ranks_whose_stacks_may_not_be_read_are_still_counted() -> None:
    """Eight ranks, ptrace denied for all: the one that is behind is reported once the hang timeout of 60 s is over."""
    early, late = counted(8, 30.0, laggard=5), counted(8, 70.0, laggard=5)

    assert early.state == "inconclusive"
    assert early.suspect is not None
    assert (late.state, late.cause) == ("hung", "stalled_collective")
    assert [culprit.rank for culprit in late.culprits] == [5]
    assert "ranks 0, 1, 2, 3, 4, 6, 7 wait for it" in late.summary


def test_a_rank_on_another_host_is_named_with_its_host() -> None:
    """Of four ranks two run on this machine."""
    members = tuple(
        GroupMember(rank=rank, pid=PIDS.get(rank, 9000 + rank), host="a" if rank < 2 else "b", local=rank < 2,
                    launched={"AllReduce": 40 if rank == 3 else 41})
        for rank in range(4)
    )  # fmt: skip
    looks = [
        [Communicator(communicator="c", size=4, members=members), asleep(0, 3.0 * number), asleep(1, 3.0 * number)]
        for number in range(25)
    ]
    verdict = judge(case(*looks, world=4, here=2))

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert (verdict.culprits[0].rank, verdict.culprits[0].host) == (3, "b")
    assert (verdict.coverage.ranks_seen, verdict.coverage.world_size) == (2, 4)


def test_of_two_processes_with_one_rank_the_younger_counts() -> None:
    """An elastic restart leaves the old one for a moment."""
    old = Process(
        pid=500, start_ticks=0, parent_pid=1, name="python", command=("python",), python=True, rank=1, world_size=2
    )
    verdict = said([old, *report("hung.json")], report("hung.json"))

    assert verdict.coverage.ranks_seen == 2
    assert accused(verdict) == STALLED
    assert verdict.culprits[0].pid == PIDS[1]


def test_a_ras_service_that_does_not_answer_is_evidence_beside_a_stopped_rank() -> None:
    """Its thread is stopped with the process."""
    recording = load_case(RECORDINGS / "stopped" / "fires" / "stopped-nccl")
    history = History(recording.records, recording.end + 1.0)
    before = judge(Case(history, recording.session))
    reason = "NCCL's RAS service at localhost:28028 did not answer"
    call = ProbeCall(probe="nccl_ras", entity="job", duration_seconds=3.0, outcome="unavailable", reason=reason)
    history.add(recording.end, call)
    after = judge(Case(history, recording.session))

    assert (after.state, after.cause) == (before.state, before.cause) == ("hung", "stopped")
    assert "nccl_ras" not in {one.witness for one in before.evidence}
    assert [one.observed for one in after.evidence if one.witness == "nccl_ras"] == [f"no greeting: {reason}"]


LIB = "/venv/lib/python3.12/site-packages/torch/distributed/"
RENDEZVOUS = (
    Frame("_env_rendezvous_handler", LIB + "rendezvous.py", 258),
    Frame("init_process_group", LIB + "distributed_c10d.py", 1700),
    Frame("<module>", "/app/train.py", 12),
)
RESTARTED = 70.0


def process(pid: int, rank: int, start_ticks: int) -> Process:
    """A rank that torchrun, pid 10, has started."""
    return Process(pid=pid, start_ticks=start_ticks, parent_pid=10, name="python", command=("python", "train.py"), python=True,
                   torch_loaded=True, rank=rank, world_size=2, age_seconds=1.0)  # fmt: skip


def stood(state: str = "running", ended: tuple[int, ...] = (20, 21)) -> History:
    """Two ranks of torchrun of which RAS says the same for 70 s, when some of them end."""
    torchrun = ("python", "/env/bin/torchrun", "train.py")
    history = History()
    history.add(0.0, Process(pid=10, start_ticks=1, parent_pid=1, name="torchrun", command=torchrun, python=True))
    for rank, pid in enumerate((20, 21)):
        history.add(0.0, process(pid, rank, 100))
        for at in range(2, int(RESTARTED), 2):
            history.add(float(at), Thread(pid=pid, tid=pid, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0))
    for at in range(2, int(RESTARTED), 2):
        history.add(float(at), group("old", pids=(20, 21), state=state))
    for pid in ended:
        history.add(RESTARTED, ProcessEnded(pid=pid, start_ticks=100))
    return history


def restarted(state: str, seconds: float) -> Verdict:
    """So long after a restart: the new rank 0 waits at the rendezvous for the new rank 1, which still loads."""
    history = stood(state)
    for rank, pid in enumerate((30, 31)):
        history.add(RESTARTED + 0.5, process(pid, rank, 7000))
    for after in range(1, int(seconds)):
        at = RESTARTED + after
        wait = Wait(call="poll", number=7, kind="poll", remaining_seconds=1700.0 - after)
        history.add(at, Thread(pid=30, tid=30, name="python", state="S", cpu_seconds=3.0, run_seconds=3.0,
                               voluntary_switches=50, ran_ago_seconds=after - 1.0, wait=wait))  # fmt: skip
        history.add(at, Stack(pid=30, tid=30, thread="MainThread", frames=RENDEZVOUS, samples=3, span_seconds=0.5))
        history.add(at, Thread(pid=31, tid=31, name="python", state="R", cpu_seconds=after, run_seconds=after))
        frames = (Frame("load", "/app/load.py", 5 + after % 3), Frame("<module>", "/app/train.py", 9))
        history.add(at, Stack(pid=31, tid=31, thread="MainThread", frames=frames, samples=3, span_seconds=0.5))
    return judged(history, RESTARTED + seconds)


def judged(history: History, at: float) -> Verdict:
    """The verdict on torchrun's job at that moment."""
    history.at = at
    return judge(Case(history, session(root_pids=(10,))))


def causes(verdict: Verdict) -> set[str | None]:
    """Every cause that was found, suspected ones too."""
    return {verdict.cause, *(one.cause for one in verdict.findings)}


@pytest.mark.parametrize("state", ["running", "unresponsive", "dead"])
@pytest.mark.parametrize("seconds", [5.0, 20.0, 38.0])
def test_ranks_that_were_restarted_are_not_called_hung_for_those_before_them(state: str, seconds: float) -> None:
    """An elastic restart ended the hang; the counts are of the ranks before it."""
    verdict = restarted(state, seconds)

    assert verdict.state != "hung"
    assert "stalled_collective" not in causes(verdict)


def test_an_answer_that_comes_late_is_about_the_ranks_before_the_restart_too() -> None:
    """RAS was asked while they lived."""
    late = stood()
    for rank, pid in enumerate((30, 31)):
        late.add(RESTARTED + 0.5, process(pid, rank, 7000))
    late.add(RESTARTED + 2.0, group("old", pids=(20, 21)))

    assert "stalled_collective" not in causes(judged(late, RESTARTED + 3.0))


def test_a_rank_that_ended_and_was_not_replaced_is_still_waited_for() -> None:
    """No other process has its rank."""
    verdict = judged(stood(ended=(21,)), RESTARTED + 1.0)

    assert accused(verdict) == STALLED
    assert verdict.culprits[0].pid == 21


def test_a_helper_that_inherited_a_rank_number_and_ended_is_no_rank_before_it() -> None:
    """It came later than the rank, and went while that goes on."""
    hung = case([group("c")], [group("c")], [group("c")])
    hung.history.add(4.0, Process(pid=900, start_ticks=500, parent_pid=1, name="python", command=("python", "log.py"),
                                  python=True, rank=0, world_size=2))  # fmt: skip
    hung.history.add(6.0, ProcessEnded(pid=900, start_ticks=500))

    assert accused(judge(Case(hung.history, session()))) == STALLED


def test_a_group_that_its_ranks_have_ended_does_not_stand() -> None:
    """A newer answer speaks for the same processes, and names another group of theirs alone."""
    assert accused(said([group("c")], [group("c")], [group("d", (1, 1))])) == NO_ACCUSATION


def test_a_group_of_processes_that_an_answer_does_not_speak_for_stands() -> None:
    """Groups without a common rank are two networks of RAS on one port: either of them may answer."""
    other = group("d", (1, 1), pids=(702, 703))

    assert accused(said([group("c")], [group("c")], [other], world=4)) == STALLED


def test_what_a_joined_recording_has_left_out_is_no_group_that_has_ended() -> None:
    """Of a large group it keeps the answers of one host, which was not asked last."""
    hosts = ("a", "b")
    verdict = said([group("c", hosts=hosts)], [group("c", hosts=hosts)], [group("d", (1, 1), hosts=hosts)])

    assert accused(verdict) == STALLED
