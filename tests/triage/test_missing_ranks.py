"""Ranks that are missing: at a barrier, at a rendezvous, or because they have ended."""

import signal
from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.recording.recording import Record, Recording
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Communicator as Group
from perfwatch_probes.readings import (
    Descriptor,
    Frame,
    GroupMember,
    ProbeCall,
    Process,
    ProcessEnded,
    Reading,
    Stack,
    Steps,
    Traceback,
    Wait,
)
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
from tests.triage.rank_looks import (
    BARRIER,
    BEGAN,
    FIRST,
    FOR_EVER,
    LIB,
    MODULE,
    STEP,
    STEP_SECONDS,
    STOPPED,
    TORCH,
    TRAIN,
    Frames,
    job,
    looks,
    process,
    runs,
    stands,
    uses,
)
from tests.triage.rank_looks import judged as dismissal_judged
from tests.triage.rank_looks import judged as ended_ranks_judged
from tests.triage.retold import retold, same

# Who is to blame at a rendezvous to which somebody does not come: who is not there, never those who wait.


CASES = RECORDINGS / "blocked_rendezvous" / "fires"
CASE = CASES / "at_different_ports"
LEFT = CASES / "rank_that_has_left"
GONE = CASES / "rank_gone_since_they_met"
UNSEEN = ProbeCall(
    probe="ranks",
    entity="3",
    duration_seconds=0.0,
    outcome="unavailable",
    reason="3 processes that run the job's program may not be looked into: pid 7, 8, 9 of uid 1002",
    advice="sudo perfwatch attach 5",
)


def of_five(record: Record, here: int | None) -> Record:
    """The launcher told its ranks of three more, and how many of them are to be on this machine."""
    process = record.reading
    if not isinstance(process, Process) or process.rank is None:
        return record
    changed = msgspec.structs.replace(process, world_size=5, local_world_size=here)
    return msgspec.structs.replace(record, reading=changed)


def judged(here: int | None) -> Verdict:
    """What is said of two ranks that wait for three others."""
    whole = load_case(CASE)
    return diagnose(replace(whole, records=tuple(of_five(record, here) for record in whole.records)))


@pytest.mark.parametrize("here", [5, None])
def test_the_ranks_that_are_not_there_are_to_blame(here: int | None) -> None:
    """They have no process here, and so no number of one."""
    verdict = judged(here)

    assert (verdict.state, verdict.cause) == ("hung", "blocked_rendezvous")
    assert [(one.rank, one.pid) for one in verdict.culprits] == [(2, 0), (3, 0), (4, 0)]
    assert "ranks 2, 3, 4 of 5 are on another machine, or not started" in verdict.summary


def test_of_a_job_on_two_machines_nobody_is_blamed_from_one_of_them() -> None:
    """One of the others is missing, or waits on the other machine as these do here."""
    verdict = judged(2)

    assert (verdict.cause, verdict.culprits) == ("blocked_rendezvous", ())


def test_a_rank_that_has_left_is_named_by_those_who_wait_for_its_key() -> None:
    """It ended well, by its own account: nothing but the wait of the others tells that it was needed."""
    verdict = retold(LEFT)

    assert "has ended (exited with code 0)" in verdict.summary
    assert [one.rank for one in verdict.culprits] == [2]


def test_a_rank_that_is_gone_since_all_met_is_not_looked_for_on_another_machine() -> None:
    """The others have gloo's threads, which come when each is connected to every other; all that wait are shown."""

    def elsewhere(reading: Reading) -> Reading:
        if not isinstance(reading, Descriptor) or reading.socket is None or reading.socket.family != "tcp":
            return reading  # the store's are of family tcp6 here
        return msgspec.structs.replace(reading, socket=msgspec.structs.replace(reading.socket, peer_pids=()))

    verdict = retold(GONE)

    assert verdict.summary.endswith("rank 1 of 3 is gone since the rendezvous")
    assert [one.rank for one in verdict.culprits] == [1]
    assert {link.rank for link in verdict.wait_chain} == {0, 2}
    assert retold(GONE, elsewhere).summary.endswith(
        "rank 1 of 3 is gone since the rendezvous, or where it cannot be seen from here"
    )


def test_where_ranks_may_not_be_looked_into_none_is_said_to_be_gone() -> None:
    """What to type is said first."""
    verdict = retold(GONE, same, UNSEEN)

    assert verdict.culprits == ()
    assert "pid 7, 8, 9 of uid 1002" in verdict.summary
    assert verdict.next[0] == UNSEEN.advice


# Processes that wait for each other at a barrier, one of which has ended: who is missed, why it ended, and where to look.


MISSED_AT_A_BARRIER_CASES = RECORDINGS / "dead_worker" / "fires"
MISSED_AT_A_BARRIER_CASE, MISSED = MISSED_AT_A_BARRIER_CASES / "missed_at_a_barrier", 23866


def judged_at_a_barrier(recording: Recording) -> Verdict:
    """At the moment of the case."""
    return diagnose(recording, expected_of(MISSED_AT_A_BARRIER_CASE).at)


def ended(**how: int | None) -> Recording:
    """The case, where the one that is missed ended in another way."""
    recording = load_case(MISSED_AT_A_BARRIER_CASE)
    records = tuple(
        msgspec.structs.replace(one, reading=msgspec.structs.replace(one.reading, **{"exit_code": None, **how}))
        if isinstance(one.reading, ProcessEnded) and one.reading.pid == MISSED
        else one
        for one in recording.records
    )
    return replace(recording, records=records)


def test_who_is_missed_is_told_with_its_exit_code_and_no_lock_is_spoken_of() -> None:
    """A worker raised; two others wait in ``Barrier.wait``."""
    verdict = judged_at_a_barrier(load_case(MISSED_AT_A_BARRIER_CASE))

    assert (
        "at worker (train.py:41) waits at a barrier for process 23866, which has ended (exited with code 1"
        in verdict.summary
    )
    assert [culprit.pid for culprit in verdict.culprits][:1] == [MISSED]
    assert "traceback of process 23866" in verdict.next[0]
    assert not [one for one in (verdict.summary, *verdict.next) if "lock" in one or "dmesg" in one]


def test_the_kernels_log_is_asked_where_a_signal_ended_it_or_nobody_knows_what_did() -> None:
    """The OOM killer may have."""
    assert "killed by SIGKILL" in judged_at_a_barrier(ended(signal=9)).summary
    assert judged_at_a_barrier(ended(signal=9)).next[0].startswith("dmesg")
    assert judged_at_a_barrier(ended()).next[0].startswith("dmesg")


def test_one_that_left_as_it_should_is_missed_all_the_same() -> None:
    """It made fewer rounds than the others."""
    verdict = judged_at_a_barrier(ended(exit_code=0))

    assert "has ended (exited with code 0" in verdict.summary
    assert verdict.next[0] == "why process 23866 left before the others"


def test_its_last_words_are_shown_where_the_agent_kept_them() -> None:
    """Most are printed by multiprocessing itself, and nobody but the job's stderr has them."""
    recording = load_case(MISSED_AT_A_BARRIER_CASE)
    words = Traceback(pid=MISSED, exception="IndexError", text="IndexError: Target 7 is out of bounds.")
    records = (*recording.records, msgspec.structs.replace(recording.records[-1], reading=words))

    evidence = judged_at_a_barrier(replace(recording, records=records)).evidence

    assert [one.observed for one in evidence if one.witness == "traceback"] == [words.text]


def test_a_condition_between_processes_is_no_lock() -> None:
    """The same wait without the barrier around it."""
    recording = load_case(MISSED_AT_A_BARRIER_CASE)
    records = tuple(
        msgspec.structs.replace(one, reading=msgspec.structs.replace(one.reading, frames=_without(one.reading)))
        if isinstance(one.reading, Stack)
        else one
        for one in recording.records
    )

    assert "waits for a condition or an event between processes that is not signalled; process 23866 has ended" in (
        judged_at_a_barrier(replace(recording, records=records)).summary
    )


def _without(stack: Stack) -> tuple[Frame, ...]:
    return tuple(frame for frame in stack.frames if not frame.function.startswith("Barrier"))


def test_a_semaphore_is_taken_along_as_before() -> None:
    """What is a lock is still called one."""
    case = MISSED_AT_A_BARRIER_CASES / "semaphore_taken_along"

    assert "waits for a lock between processes that one of them never released" in (
        diagnose(load_case(case), expected_of(case).at).summary
    )


# Ranks that have ended while others wait in a collective: which of them are to blame, and when a rank that lives is.


SCORES: tuple[Frames, ...] = tuple(
    (Frame("forward", TORCH + f"nn/modules/{name}.py", 7), Frame("evaluate", TRAIN, 77), MODULE)
    for name in ("linear", "dropout", "activation")
)
ASLEEP: Frames = (Frame("poll", TRAIN, 31), MODULE)
PAST_PATIENCE = 75.0


def one_rank_ends(code: int | None, number: int | None = None, works: bool = True, seconds: float = 30.0) -> History:
    """Rank 2 ends, rank 0 waits in a barrier, and rank 1 evaluates or stands."""
    history = job(3)
    until = STOPPED + seconds
    stands(history, FIRST, BARRIER, FOR_EVER, until)
    if works:
        runs(history, FIRST + 1, SCORES, STOPPED, until)
        uses(history, FIRST + 1, 0.95, 0.0, until)
    else:
        stands(history, FIRST + 1, ASLEEP, Wait(call="futex", number=202, kind="futex", forever=True), until)
    history.add(STOPPED + 1.0, ProcessEnded(pid=FIRST + 2, start_ticks=FIRST + 2, exit_code=code, signal=number))
    return history


def told(history: History, seconds: float = 30.0) -> Verdict:
    """What is said so long after rank 2 went."""
    return ended_ranks_judged(history, STOPPED + seconds)


@pytest.mark.parametrize("code", [0, None])
def test_a_rank_that_is_done_is_not_blamed_while_one_that_lives_evaluates(code: int | None) -> None:
    """It may be in no group that the others wait in; how it ended is not known to everybody."""
    assert told(one_rank_ends(code)).state != "hung"


@pytest.mark.parametrize(("code", "number"), [(1, None), (None, signal.SIGKILL)])
def test_a_rank_that_failed_is_blamed_all_the_same(code: int | None, number: int | None) -> None:
    """Nobody leaves a group so."""
    verdict = told(one_rank_ends(code, number))

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert [one.rank for one in verdict.culprits] == [2]


def test_beside_a_rank_that_is_done_the_one_that_stands_is_to_blame() -> None:
    """It lives, and has not come."""
    verdict = told(one_rank_ends(0, works=False, seconds=PAST_PATIENCE), PAST_PATIENCE)

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert [one.rank for one in verdict.culprits] == [1]


def test_where_all_that_live_wait_it_is_the_one_that_is_gone() -> None:
    """Who else."""
    history = job(3)
    for rank in (0, 1):
        stands(history, FIRST + rank, BARRIER, FOR_EVER, STOPPED + 30.0)
    history.add(STOPPED + 1.0, ProcessEnded(pid=FIRST + 2, start_ticks=FIRST + 2, exit_code=0))

    assert [one.rank for one in told(history).culprits] == [2]


def test_the_groups_tell_whether_one_that_is_gone_is_waited_for() -> None:
    """NCCL counts rank 1 behind in a group of ranks 0 and 1: a rank that was killed is not what keeps it."""
    history = one_rank_ends(None, signal.SIGKILL, works=False, seconds=PAST_PATIENCE)
    members = tuple(
        GroupMember(rank=rank, pid=FIRST + rank, host="a", local=True, launched={"AllReduce": 41 - rank})
        for rank in (0, 1)
    )
    for at in range(3, int(PAST_PATIENCE), 3):
        history.add(STOPPED + at, Group(communicator="c", size=2, members=members))

    assert [one.rank for one in told(history, PAST_PATIENCE).culprits] == [1]


@pytest.mark.parametrize(
    ("zombies", "placed", "later", "blamed"),
    [
        (1, {"MASTER_ADDR": "127.0.0.1"}, 0.0, [1]),
        (1, {"LOCAL_WORLD_SIZE": "2"}, 0.0, [1]),
        (2, {"MASTER_ADDR": "127.0.0.1"}, 0.0, []),
        (1, {"MASTER_ADDR": "node-0"}, 0.0, []),
        (1, {"MASTER_ADDR": "127.0.0.1"}, 60.0, []),
    ],
    ids=["loopback", "all_here", "two", "other_hosts", "a_later_child"],
)
def test_a_rank_that_was_a_zombie_at_first_sight_is_known_by_elimination(
    zombies: int, placed: dict[str, str], later: float, blamed: list[int]
) -> None:
    """Nothing of it can be read any more, not even its number. Any program leaves zombies: it started with the others, and all are here."""
    history, hundredths = job(1), 100
    here = int(placed["LOCAL_WORLD_SIZE"]) if "LOCAL_WORLD_SIZE" in placed else None
    rank = process(FIRST, 1, "python train.py", 0, 2)
    history.add(0.0, msgspec.structs.replace(rank, environment=placed, local_world_size=here))
    stands(history, FIRST, BARRIER, FOR_EVER, STOPPED + 30.0)
    started = FIRST + int(later * hundredths)
    for pid in range(FIRST + 1, FIRST + 1 + zombies):
        history.add(
            STOPPED, Process(pid=pid, start_ticks=started, parent_pid=1, name="python3", command=(), python=True)
        )
        history.add(STOPPED, ProcessEnded(pid=pid, start_ticks=started, zombie=True, signal=signal.SIGKILL))

    assert [one.rank for one in told(history).culprits] == blamed


# A parameter server of torch's RPC waits in ``shutdown()`` until all others have come to it: it hangs only if they do.


API = TORCH + "distributed/rpc/api.py"
SERVES: Frames = (  # torch 2.13
    Frame("wait", LIB + "threading.py", 327),
    Frame("wait", LIB + "threading.py", 629),
    Frame("_all_gather", API, 257),
    Frame("_wait_all_workers", API, 320),
    Frame("shutdown", API, 382),
    Frame("main", TRAIN, 33),
    MODULE,
)
LOCKED: Frames = (Frame("take", TRAIN, 50), MODULE)
SERVER, TRAINER, OTHER = FIRST, FIRST + 1, FIRST + 2
UNTIL = STOPPED + 80.0  # beyond the patience


def served(*trainers: int) -> History:
    """A server that has waited since the beginning, beside trainers that make steps until now."""
    history = job(3, trained=False)
    stands(history, SERVER, SERVES, FOR_EVER, UNTIL, since=BEGAN)
    uses(history, SERVER, 0.06, 2000.0, UNTIL)
    for pid in trainers:
        runs(history, pid, STEP, BEGAN, UNTIL)
        for at in looks(BEGAN, UNTIL)[1::2]:
            done = int((at - BEGAN) / STEP_SECONDS)
            history.add(at, Steps(pid=pid, tid=pid, count=done, step_ago_seconds=0.1, interval_seconds=(0.25,) * 4))
    return history


def test_a_job_is_as_healthy_as_its_trainers_while_the_server_waits_for_them() -> None:
    """It has nothing to do but to answer them."""
    verdict = dismissal_judged(served(TRAINER, OTHER), UNTIL)

    assert (verdict.state, verdict.cause) == ("healthy", "cpu_training")
    assert {one.state for one in verdict.findings} <= {"healthy"}


def test_of_a_server_and_a_trainer_that_hangs_the_trainer_is_blamed() -> None:
    """The server waits for it; the other trainer goes on."""
    history = served(OTHER)
    stands(history, TRAINER, LOCKED, FOR_EVER, UNTIL)

    verdict = dismissal_judged(history, UNTIL)

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert {one.pid for one in verdict.culprits} == {TRAINER}


def test_where_all_have_come_and_it_does_not_end_it_hangs() -> None:
    """Nobody is left to be waited for."""
    history = served()
    for pid in (TRAINER, OTHER):
        stands(history, pid, SERVES, FOR_EVER, UNTIL)

    assert dismissal_judged(history, UNTIL).state == "hung"


def test_a_real_server_beside_a_trainer_is_no_part_of_what_is_judged() -> None:
    """Its transport looks for messages at half a core, for which nobody waits."""
    case = RECORDINGS / "waiting_on_work" / "lookalike" / "parameter_server"
    verdict = diagnose(load_case(case), expected_of(case).at)

    assert (verdict.state, verdict.cause) == ("healthy", "cpu_training")


# Ranks that a launcher starts again: when it is a loop of failures, and what of the ranks before still counts.


SHELL, TORCHRUN = "bash sweep.sh", "python /env/bin/torchrun train.py"
NOW, NEWEST = 4000.0, 40


def followed(above: str, life_seconds: float, *, code: int | None, pids: tuple[int, ...] = (20, 30, NEWEST)) -> History:
    """Processes of rank 0 below one parent: the last has just begun, and those before it ended so after such a life."""
    history = History(at=NOW)
    command = tuple(above.split())
    python = command[0] == "python"
    history.add(0.0, Process(pid=10, start_ticks=1, parent_pid=1, name=command[0], command=command, python=python))
    for number, pid in enumerate(pids):
        born = NOW - 1.0 - (len(pids) - 1 - number) * life_seconds
        history.add(
            born,
            Process(pid=pid, start_ticks=int(100 * born), parent_pid=10, name="python", command=("python", "train.py"),
                    python=True, torch_loaded=True, rank=0, age_seconds=0.0),
        )  # fmt: skip
        if pid != pids[-1]:
            end = ProcessEnded(pid=pid, start_ticks=int(100 * born), exit_code=code)
            history.add(born + life_seconds, end)
    return history


def judged_with_restarts(history: History, trains_seconds: float = 0.0) -> Verdict:
    """The verdict after the newest process has trained for so long."""
    if trains_seconds:
        runs(history, NEWEST, STEP, NOW, NOW + trains_seconds)
    history.at = NOW + trains_seconds
    return judge(Case(history, session(root_pids=(10,))))


@pytest.mark.parametrize(
    ("above", "life_seconds", "code", "restarted"),
    [
        (TORCHRUN, 20.0, None, True),  # how they ended only torchrun knows, and it starts anew what failed
        (SHELL, 20.0, 1, True),  # until python train.py; do sleep 5; done
        (SHELL, 20.0, 0, False),  # for seed in 1 2 3; do RANK=0 python train.py $seed; done
        (SHELL, 20.0, None, False),
        (TORCHRUN, 1200.0, 1, False),  # a run that fails now and then goes on
    ],
)
def test_only_what_follows_on_short_failures_is_a_restart(
    above: str, life_seconds: float, code: int | None, restarted: bool
) -> None:
    """A process that ended well is not restarted, whatever comes next."""
    verdict = judged_with_restarts(followed(above, life_seconds, code=code))

    assert ((verdict.state, verdict.cause) == ("slow", "restart_loop")) is restarted
    assert ("3 processes of rank 0 in 41 s" in verdict.summary) is restarted


@pytest.mark.parametrize(
    ("pids", "life_seconds", "trains_seconds", "state"),
    [
        ((30, NEWEST), 20.0, 15.0, "inconclusive"),  # it may end as the last one did
        ((30, NEWEST), 20.0, 60.0, "healthy"),
        ((30, NEWEST), 100.0, 15.0, "healthy"),  # a verdict does not wait for minutes
        ((20, 30, NEWEST), 20.0, 15.0, "slow"),  # two restarts are a loop
        ((20, 30, NEWEST), 20.0, 60.0, "healthy"),  # the third try outlives those before it
    ],
)
def test_a_restarted_process_is_healthy_once_it_has_outlived_those_before_it(
    pids: tuple[int, ...], life_seconds: float, trains_seconds: float, state: str
) -> None:
    """Whatever it does meanwhile: it trains in each of these cases."""
    verdict = judged_with_restarts(followed(TORCHRUN, life_seconds, code=1, pids=pids), trains_seconds)

    assert verdict.state == state
    assert ("restart_loop" in {verdict.cause, *(one.cause for one in verdict.findings)}) is (trains_seconds < 60.0)


RESTARTS_SCORES = tuple(
    (Frame("forward", TORCH + f"nn/modules/{name}.py", 7), Frame("evaluate", TRAIN, 77), MODULE)
    for name in ("linear", "dropout", "activation")
)
ENDED, RESTARTS_UNTIL = 15.0, STOPPED + 30.0


def rank(pid: int, number: int, world_size: int, restarts: int) -> Process:
    """One that torchrun, pid 10, has started."""
    started = process(pid, 10, "python train.py", number, world_size)
    return structs.replace(started, environment={"TORCHELASTIC_RESTART_COUNT": str(restarts)})


def renumbered(restarts: int, world_size: int = 2) -> History:
    """This node's ranks 2 and 3 of 4 ended, and there are 0 and 1 of so many now, of which one waits and one evaluates."""
    history = History()
    torchrun = ("python", "/env/bin/torchrun", "train.py")
    history.add(0.0, Process(pid=10, start_ticks=1, parent_pid=1, name="torchrun", command=torchrun, python=True))
    for pid, number in ((100, 2), (101, 3)):
        history.add(0.0, rank(pid, number, 4, 0))
        history.add(ENDED, ProcessEnded(pid=pid, start_ticks=pid, signal=signal.SIGTERM))
    for pid, number in ((200, 0), (201, 1)):
        history.add(ENDED + 2.0, rank(pid, number, world_size, restarts))
        runs(history, pid, STEP, BEGAN, STOPPED)
    stands(history, 200, BARRIER, FOR_EVER, RESTARTS_UNTIL)
    runs(history, 201, RESTARTS_SCORES, STOPPED, RESTARTS_UNTIL)
    history.at = RESTARTS_UNTIL
    return history


def elastic(history: History) -> Verdict:
    """The verdict on torchrun's job."""
    return judge(Case(history, session(root_pids=(10,))))


@pytest.mark.parametrize(
    ("restarts", "world_size"), [(0, 2), (1, 2), (1, 4)], ids=["other node gone", "and a rank failed", "a rank failed"]
)
def test_ranks_of_a_generation_before_are_not_waited_for(restarts: int, world_size: int) -> None:
    """By the size of the job or by the launcher's count of restarts; however few ranks there are now, they are all of this node."""
    verdict = elastic(renumbered(restarts, world_size))

    assert verdict.state != "hung"
    assert (verdict.coverage.ranks_seen, verdict.coverage.world_size) == (2, world_size)
    assert ("ranks" in {one.witness for one in verdict.missing}) is (world_size > 2)


def test_ranks_that_ended_in_the_generation_of_the_others_are_waited_for() -> None:
    """Size and count are the same: these two were started late."""
    verdict = elastic(renumbered(0, 4))

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert verdict.culprits[0].rank == 2
    assert verdict.coverage.ranks_seen == 4


def test_a_rank_that_ends_within_a_generation_is_one_of_it() -> None:
    """Its launcher has started no other since."""
    history = renumbered(0)
    history.add(STOPPED + 1.0, ProcessEnded(pid=201, start_ticks=201, signal=signal.SIGKILL))
    verdict = elastic(history)

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert [(one.rank, one.pid) for one in verdict.culprits] == [(1, 201)]
