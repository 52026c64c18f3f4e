"""What RAS said of ranks that are no more, or of a group that its ranks have ended, is not believed for longer than they are there."""

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.triage.ranks.agreement import disagreement
from perfwatch.triage.ranks.collectives import standings
from perfwatch.triage.ranks.waitgraph import wait_graph
from perfwatch_probes.readings import (
    Communicator,
    Frame,
    GroupMember,
    Operation,
    Process,
    ProcessEnded,
    Reading,
    RecordedGroup,
    Stack,
    Steps,
    Thread,
    Wait,
)
from tests.sessions import session
from tests.triage.group_looks import PIDS, case

LIB = "/venv/lib/python3.12/site-packages/torch/distributed/"
RENDEZVOUS = (
    Frame("_env_rendezvous_handler", LIB + "rendezvous.py", 258),
    Frame("init_process_group", LIB + "distributed_c10d.py", 1700),
    Frame("<module>", "/app/train.py", 12),
)
RESTARTED = 70.0


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


def process(pid: int, rank: int, start_ticks: int) -> Process:
    """A rank of torchrun's, pid 10."""
    return Process(pid=pid, start_ticks=start_ticks, parent_pid=10, name="python", command=("python", "train.py"), python=True,
                   torch_loaded=True, rank=rank, world_size=2, age_seconds=1.0)  # fmt: skip


def stood(state: str) -> History:
    """Two ranks of torchrun of which RAS says the same until the agent ends them."""
    torchrun = ("python", "/env/bin/torchrun", "train.py")
    history = History()
    history.add(0.0, Process(pid=10, start_ticks=1, parent_pid=1, name="torchrun", command=torchrun, python=True))
    for rank, pid in enumerate((20, 21)):
        history.add(0.0, process(pid, rank, 100))
        for at in range(2, int(RESTARTED), 2):
            history.add(float(at), Thread(pid=pid, tid=pid, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0))
    for at in range(2, int(RESTARTED), 2):
        history.add(float(at), group("old", pids=(20, 21), state=state))
    for pid in (20, 21):
        history.add(RESTARTED, ProcessEnded(pid=pid, start_ticks=100))
    return history


def restarted(state: str, seconds: float) -> Case:
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
    history.at = RESTARTED + seconds
    return Case(history, session(root_pids=(10,)))


@pytest.mark.parametrize("state", ["running", "unresponsive", "dead"])
@pytest.mark.parametrize("seconds", [5.0, 20.0, 38.0])
def test_ranks_that_were_started_anew_are_not_called_hung_for_those_before_them(state: str, seconds: float) -> None:
    """An elastic restart ended the hang, and what was counted of the former ranks went with them."""
    now = restarted(state, seconds)

    assert standings(now) == []
    assert judge(now).state != "hung"


def test_an_answer_that_comes_late_is_about_the_ranks_before_the_restart_too() -> None:
    """It was asked while they lived."""
    late = stood("running")
    for rank, pid in enumerate((30, 31)):
        late.add(RESTARTED + 0.5, process(pid, rank, 7000))
    late.add(RESTARTED + 2.0, group("old", pids=(20, 21)))
    late.at = RESTARTED + 3.0

    assert standings(Case(late, session(root_pids=(10,)))) == []


def test_a_rank_that_has_only_ended_is_still_one_that_others_wait_for() -> None:
    """Nobody has taken its place."""
    history = stood("running")
    history.at = RESTARTED + 1.0

    assert standings(Case(history, session(root_pids=(10,))))


def test_a_helper_that_inherited_a_ranks_number_and_ended_is_no_rank_before_it() -> None:
    """It came later than the rank, and went while that goes on."""
    hung = case([group("c")], [group("c")], [group("c")])
    hung.history.add(4.0, Process(pid=900, start_ticks=500, parent_pid=1, name="python", command=("python", "log.py"),
                                  python=True, rank=0, world_size=2))  # fmt: skip
    hung.history.add(6.0, ProcessEnded(pid=900, start_ticks=500))

    assert [one.group for one in standings(Case(hung.history, session()))] == ["c"]


def test_a_group_that_its_ranks_do_not_have_any_more_does_not_stand() -> None:
    """A newer answer speaks for the same processes, and names another group of theirs alone."""
    ended = case([group("c")], [group("c")], [group("d", (1, 1))])

    assert standings(ended) == []
    assert wait_graph(ended) is None


def test_a_group_of_processes_that_an_answer_does_not_speak_for_stands() -> None:
    """Groups without a rank in common are two networks of RAS on one port: now this one answers, now that one."""
    apart = case([group("c")], [group("c")], [group("d", (1, 1), pids=(702, 703))], world=4)

    assert [one.group for one in standings(apart)] == ["c"]


def test_what_a_joined_recording_has_left_out_is_no_group_that_has_ended() -> None:
    """Of a large group it keeps the answers of one host, which was not asked last."""
    hosts = ("a", "b")
    joined = case([group("c", hosts=hosts)], [group("c", hosts=hosts)], [group("d", (1, 1), hosts=hosts)])

    assert [one.group for one in standings(joined)] == ["c"]


def lying(written_ago_seconds: float, sizes: tuple[int, int] = (8, 8)) -> list[RecordedGroup]:
    """Dumps that lay there: rank 0 is in a call that rank 1 has not made, or has made with another size."""
    looks = []
    for rank, size in enumerate(sizes):
        reached = 10 if sizes[0] != sizes[1] or not rank else 9
        calls = tuple(
            Operation(sequence=number, order=number, name="all_reduce", input_elements=size if number == 10 else 8,
                      state="scheduled" if number == 10 else "completed")
            for number in range(9, reached + 1)
        )  # fmt: skip
        looks.append(RecordedGroup(pid=PIDS[rank], rank=rank, group="0", members=(0, 1), enqueued=reached, completed=9,
                                   operations=calls, origin="file", written_ago_seconds=written_ago_seconds))  # fmt: skip
    return looks


def counted(*counts: int, dumps: list[RecordedGroup]) -> Case:
    """What RAS counts in both ranks every 3 s, and the dumps at the last look but one."""
    looks: list[list[Reading]] = [[group("c", (count, count))] for count in counts]
    looks[-2] += dumps
    return case(*looks)


def test_a_dump_that_lies_there_is_not_about_a_job_whose_counts_have_grown_since() -> None:
    """Somebody has asked for it earlier: nobody hangs."""
    before = wait_graph(counted(100, 105, 110, 110, dumps=lying(2.0)))  # written at 4 s: the counts grew after 3 s
    since = wait_graph(counted(100, 105, 110, 110, dumps=lying(600.0)))

    assert before is not None
    assert (before.source, before.edges) == ("flight_recorder", {0: (1,)})
    assert since is not None
    assert (since.source, since.edges) == ("nccl_ras", {})  # they stand now, and level
    assert wait_graph(counted(100, 105, 110, 115, dumps=lying(600.0))) is None


def test_nor_about_one_that_made_a_step_since() -> None:
    """However it is seen that the job went on."""
    step = Steps(pid=PIDS[1], tid=PIDS[1], count=8, step_ago_seconds=30.0)

    assert wait_graph(case(lying(60.0))) is not None
    assert wait_graph(case([*lying(60.0), step])) is None


def test_a_mismatch_in_such_a_dump_is_no_hang() -> None:
    """The ranks have gone past that call."""
    unequal = (8, 12)

    assert disagreement(counted(100, 100, 100, dumps=lying(600.0, unequal))) is not None
    assert disagreement(counted(100, 105, 110, dumps=lying(600.0, unequal))) is None


def test_a_rank_that_has_fallen_silent_has_not_gone_on() -> None:
    """Of it RAS counts nothing any more."""
    before: list[Reading] = [group("c", (100, 100)), *lying(600.0)]

    assert wait_graph(case(before, before, [group("c", (100, 0), state="dead")])) is not None
