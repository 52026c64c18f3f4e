"""What a verdict says: evidence for it, names, short times; and what is said where no cause can be named."""

from dataclasses import replace

import msgspec
import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.recording.recording import Record
from perfwatch.report.sentences import links_of
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import (
    Descriptor,
    Frame,
    GpuActivity,
    GpuSample,
    PolledFile,
    ProbeCall,
    Process,
    Reading,
    Stack,
    Thread,
    Wait,
)
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
from tests.triage.rank_looks import BARRIER, FIRST, FOR_EVER, MODULE, STOPPED, TRAIN, job, runs, stands
from tests.triage.rank_looks import judged as as_seen_judged

# What a verdict says, beside what it judges: its evidence speaks for it, and its sentence names who is meant.


def judged(case: str) -> Verdict:
    """A recorded case at its moment."""
    return diagnose(load_case(RECORDINGS / case), expected_of(RECORDINGS / case).at)


@pytest.mark.parametrize(
    "case",
    [
        "allocator_thrash/fires/allocator_thrash-full",
        "blocked_rendezvous/lookalike/busy_late_rank",
        "garbage_collection/fires/collects_in_each_step",
        "slow_output/fires/slow_reader",
    ],
)
def test_a_witness_that_shows_nothing_is_left_out(case: str) -> None:
    """Its "0 %" would speak against the verdict."""
    evidence = judged(case).evidence

    assert evidence
    assert [one for one in evidence if one.observed.startswith("0%")] == []


@pytest.mark.parametrize(
    ("case", "rank"),
    [
        ("evaluating/fires/evaluating", None),
        ("stalled_collective/lookalike/busy_rank_zero_evaluates", 0),
        ("blocked_rendezvous/lookalike/busy_late_rank", 1),
    ],
)
def test_among_several_ranks_the_summary_says_which(case: str, rank: int | None) -> None:
    """A job of one rank is spared the word."""
    summary = judged(case).summary

    assert summary.startswith(f"rank {rank}: ") if rank is not None else "rank" not in summary


def test_a_pool_that_waits_for_itself_waits_for_no_turn() -> None:
    """All threads of an executor wait for tasks that the same executor should do."""
    assert (
        "is blocked with no timeout on its own pool"
        in judged("deadlocked_locks/fires/pool_inside_its_own_pool").summary
    )


def test_a_process_with_one_thread_is_not_said_to_have_others() -> None:
    """A forked child waits for a lock that a thread of its parent held at the fork."""
    verdict = judged("stuck_worker/fires/lock_inherited_by_fork")

    assert "other threads" not in verdict.summary
    assert not any("other threads" in link.waits_for for link in verdict.wait_chain)


@pytest.mark.parametrize(
    ("case", "waits"),
    [
        ("stalled_collective/fires/stalled_collective-nccl", "its GPU, in all_reduce 26"),
        ("mismatched_collective/fires/mismatched_collective-nccl-early", "its GPU, in a collective"),
    ],
)
def test_a_rank_that_spins_for_its_card_does_not_wait_for_nothing(case: str, waits: str) -> None:
    """Its main thread burns a core in the driver, and its card's counters do not tell: the counts of calls do."""
    unseen = (GpuSample, GpuActivity)
    recording = load_case(RECORDINGS / case)
    records = tuple(record for record in recording.records if not isinstance(record.reading, unseen))
    verdict = diagnose(replace(recording, records=records), expected_of(RECORDINGS / case).at)
    told = [link.waits_for for link in verdict.wait_chain if link.rank == 0]
    shown = [one.claim for one in verdict.evidence if one.witness == "collective" and one.entity == "rank 0"]

    assert (told, shown) == ([waits], [f"waits for {waits}"])


@pytest.mark.parametrize(
    "case", ["stalled_collective/fires/done_and_joins_a_thread", "hung_at_exit/lookalike/peer_still_in_a_call"]
)
def test_a_rank_that_is_done_is_named_with_the_thread_that_keeps_it(case: str) -> None:
    """One rank made fewer steps and joins a thread, the other waits for it in a call: one verdict, at the first look and later."""
    verdict = judged(case)

    assert "rank 1 never joined all_reduce: its program has finished" in verdict.summary
    assert [(one.rank, one.thread) for one in verdict.culprits] == [(1, "audit")]


def test_words_in_the_variables_of_whoever_polls_are_told() -> None:
    """The path itself is an attribute, which nobody sees from outside; the word that it was made of is a variable."""
    verdict = judged("waiting_for_file/fires/polled_by_a_pool_thread")

    assert verdict.summary.endswith("in its variables: s0650")
    assert "waiter" in [one.witness for one in verdict.evidence]


def test_beside_a_heartbeat_the_thread_that_stopped_in_its_work_is_named_first() -> None:
    """The trainer waits for a buffer, the producer for the semaphore that the trainer forgot to release."""
    verdict = judged("deadlocked_locks/fires/semaphore_never_released")

    assert "so is thread producer at put (molecules.py:19) on a semaphore" in verdict.summary
    assert [one.thread for one in verdict.culprits] == ["producer", "MainThread"]


def test_of_a_socketpair_the_thread_that_owes_the_answer_is_named() -> None:
    """Nothing but the inode tells the two ends of a socket without a name; one thread reads there, another one answers."""
    verdict = judged("blocked_network/fires/asked_over_a_socketpair")

    assert [one.thread for one in verdict.culprits] == ["answers"]
    assert "to send on a unix socket" in verdict.summary


def test_a_rank_that_stands_elsewhere_is_named_and_not_those_at_the_rendezvous() -> None:
    """Two spawned ranks wait for the third, which polls for a file."""
    verdict = judged("blocked_rendezvous/fires/one_waits_elsewhere")

    assert verdict.summary.startswith("rank 2 has not joined the rendezvous")
    assert [one.rank for one in verdict.culprits] == [2]


def test_a_cycle_of_connections_says_what_is_waited_for() -> None:
    """Not "its turn": there is no lock."""
    verdict = diagnose(load_case(RECORDINGS / "blocked_network/fires/both_ends_receive"))

    assert "to send on 127.0.0.1:" in verdict.summary
    assert "its turn" not in verdict.summary


def test_a_key_that_is_awaited_after_all_have_met_is_no_missing_rank() -> None:
    """Nothing beside the verdict says that somebody should be started."""
    verdict = diagnose(load_case(RECORDINGS / "stalled_collective/fires/key_of_the_store"))

    assert [one.cause for one in verdict.findings if one.cause == "blocked_rendezvous"] == []


@pytest.mark.parametrize("case", ["waiting_for_file-flock-masked", "waiting_for_file-database"])
def test_a_chain_that_ends_at_a_lock_on_a_file_says_who_holds_it(case: str) -> None:
    """Also where the verdict is another, as of ranks that wait for the one that waits for the lock."""
    assert "which pid" in judged(f"waiting_for_file/fires/{case}").wait_chain[-1].waits_for


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            "deadlocked_locks/fires/event_loop_with_nothing_due",
            "thread crawler at <lambda> (crawler.py:29) is in an event",
        ),
        ("dead_worker/fires/semaphore_taken_along", "processes 7598, 7601 are gone"),
    ],
)
def test_who_would_have_let_it_go_on_is_named(case: str, words: str) -> None:
    """An asyncio feeder all of whose tasks wait for each other; actors that ended with a slot of a semaphore."""
    assert words in judged(case).summary


def test_a_peer_that_the_job_started_itself_is_no_matter_of_the_network() -> None:
    """It is talked to over TCP, and is a child of the one that waits."""
    assert judged("blocked_network/fires/own_child_over_tcp").owner == "user_code"
    assert judged("blocked_network/fires/blocked_network").owner == "network"


def test_a_child_that_nobody_reads_is_to_be_read() -> None:
    """It writes into a pipe that only its parent could empty, which waits for its end."""
    (advice,) = judged("blocked_child/fires/writes_to_its_waiting_parent").next

    assert "communicate()" in advice


def test_ranks_that_are_all_here_are_not_told_to_start() -> None:
    """Each looks for the others at a port of its own: that is said, and which."""
    verdict = judged("blocked_rendezvous/fires/at_different_ports")

    assert "all 2 ranks are here, and their rendezvous addresses differ: rank 0 at 127.0.0.1:" in verdict.summary
    assert verdict.next == ("compare MASTER_ADDR, MASTER_PORT and WORLD_SIZE of every rank",)


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("producer_raised", "thread prefetch has ended at load (raises.py:9) with ValueError: bad shard 17"),
        ("producer_ended", "thread Thread-1 (produce), last seen at produce (producer.py:9), has ended"),
    ],
)
def test_who_waits_for_a_thread_that_has_ended_is_told_which_and_how(case: str, told: str) -> None:
    """It would have brought what is waited for; with an error it is known where it ended."""
    verdict = judged(f"deadlocked_locks/fires/{case}")

    assert told in verdict.summary
    assert (verdict.culprits[0].frame or "?") in told


@pytest.mark.parametrize(("seen_at", "blamed"), [(9.0, True), (2.0, False)])
def test_a_thread_that_had_ended_while_the_job_went_on_is_not_blamed(seen_at: float, blamed: bool) -> None:
    """Between its last sighting and the wait there was a look in which it was missing already."""
    recording = load_case(RECORDINGS / "deadlocked_locks/fires/producer_ended")
    at = expected_of(RECORDINGS / "deadlocked_locks/fires/producer_ended").at
    pid = recording.session.root_pids[0]
    frames = (Frame("warm_up", "/home/user/producer.py", 3),)
    more = (
        Record(seen_at, Stack(pid=pid, tid=999, thread="warm-up", frames=frames)),
        Record(at, Thread(pid=pid, tid=999, name="python", state="X", cpu_seconds=0.1)),
    )

    verdict = diagnose(replace(recording, records=(*recording.records, *more)), at)

    assert ("warm_up" in verdict.summary) is blamed


def test_an_event_loop_that_a_library_keeps_for_itself_is_not_blamed() -> None:
    """It rests where nothing is asked of it, and the program has no line in it."""
    verdict = judged("deadlocked_locks/fires/producer_ended_beside_a_librarys_loop")

    assert "event loop" not in verdict.summary
    assert all("selectors.py" not in (one.frame or "") for one in verdict.culprits)


def test_threads_of_a_pool_without_a_task_are_no_partners_of_a_deadlock() -> None:
    """They wait for ever, too, and hold nothing."""
    assert "ThreadPoolExecutor" not in judged("deadlocked_locks/fires/producer_raised").summary


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("stalled_collective/fires/reader_locked_out", "and thread reader at shrink (tile_cache.py:28) for a lock"),
        ("stalled_collective/fires/store_that_refuses", "at read (store.py:21) keeps retrying with backoff"),
        ("stalled_collective/fires/two_of_four_loop", "ranks 0, 2 never joined the gradients' reduction"),
        (
            "stalled_collective/fires/left_before_the_attach-nccl",
            "rank 1 is gone, and never joined the gradients' reduction: no process of it is here any more",
        ),
        (
            "mismatched_collective/fires/one_gathers_one_receives-nccl",
            "rank 1 has not joined all_gather 21: it is in a send or receive, which NCCL does not count, or in no call",
        ),
        ("starved_by_transforms/fires/one_of_two_workers", "while 1 of 2 workers is computing, mostly at resample"),
        ("waiting_for_file/fires/database_of_another_rank", "held by rank 2 (pid 931), at main (fit.py:55)"),
        ("hung_at_exit/fires/queue_unread", "(no other process holds the other end) to read"),
        (
            "deadlocked_locks/fires/task_that_died",
            "is blocked with no timeout on a task of its event loop to become ready; no thread was seen to wake it",
        ),
        ("slow_output/fires/pictures", "writes pictures"),
        (
            "balanced/fires/pace_of_its_own",
            "a step every 5.00 s, at a pace that the program sets: it sleeps 100% of the time at tick",
        ),
        ("regressed/fires/hooks_upon_hooks", "most of that at fn (train.py:18)"),
        ("crashed/fires/asserted_on_the_device", "CUDA error: device-side assert triggered"),
    ],
)
def test_a_verdict_says_what_somebody_would_have_to_look_for(case: str, words: str) -> None:
    """Beside the state and the cause: who holds what, which of several, and what it does instead."""
    assert words in judged(case).summary


def test_a_function_that_computes_in_python_launches_nothing() -> None:
    """A matcher in plain Python keeps the card waiting: a graph of launches would help nobody."""
    verdict = diagnose(load_case(RECORDINGS / "host_bound_python/fires/matching_in_plain_python"))

    assert "Python computes at assign (matcher.py:" in verdict.summary
    assert "tensors or a native library" in verdict.next[0]


# Who is shown where no cause can be named.


STEADY = ((Frame("merge", TRAIN, 40), MODULE), (Frame("merge", TRAIN, 41), MODULE))
SOON = 0.6  # seconds after all began: nothing is suspected yet


def test_of_ranks_that_wait_in_a_collective_the_one_that_has_not_come_is_shown() -> None:
    """It is the first to be looked at, whatever it does."""
    history = job(2, trained=False)
    stands(history, FIRST, BARRIER, FOR_EVER, SOON, since=0.0)
    runs(history, FIRST + 1, STEADY, 0.0, SOON)
    verdict = as_seen_judged(history, SOON)

    assert verdict.summary.startswith(f"no cause fits so far: rank 1 (pid {FIRST + 1}) at merge")
    assert verdict.next[0].endswith(f"stacks {FIRST + 1}")


@pytest.mark.parametrize(("silent", "suspected"), [(30.0, False), (70.0, True)])
def test_without_stacks_a_job_that_rests_for_the_whole_patience_is_suspected_to_hang(
    silent: float, suspected: bool
) -> None:
    """From outside of what may be read, a lock and an item that will come look alike; that nothing ran is known."""
    history, at = job(1, trained=False), STOPPED + silent
    stands(history, FIRST, (), FOR_EVER, at)
    history.add(at - 1.0, ProbeCall(probe="stacks", entity=f"pid {FIRST}", duration_seconds=0.0, outcome="denied",
                                    reason="ptrace is not allowed", advice="sudo perfwatch attach 200"))  # fmt: skip
    verdict = as_seen_judged(history, at)

    assert (verdict.state, verdict.cause) == ("inconclusive", None)
    assert (verdict.suspect and verdict.suspect.state) == ("hung" if suspected else None)


def test_a_loop_with_a_short_sleep_in_each_turn_is_not_said_to_be_silent() -> None:
    """A step each 1.5 s: it was never silent for longer, though each sample shows it in that sleep."""
    history, at = job(1, trained=False), 30.0
    nap = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.7)
    runs(history, FIRST, [(Frame("fit", TRAIN, 50), MODULE)], 0.0, at, share=0.0002, wait=nap, switches_per_second=0.67)

    verdict = as_seen_judged(history, at)

    assert "at fit (train.py:50) sleeps repeatedly (about every 1.5 s); too little was sampled" in verdict.summary
    assert [text for _, text in links_of(verdict.wait_chain)] == [
        f"pid {FIRST}  train.py:50 fit  sleeps repeatedly (about every 1.5 s)"
    ]


# Where no process has torch loaded at the end of the look: that is what is said.


def summary(torch_loaded: bool | None) -> str:
    """Of a shell with a Python below it, at which nobody has looked any closer."""
    shell = Process(pid=10, start_ticks=1, parent_pid=1, name="bash", command=("bash",), torch_loaded=False)
    python = Process(
        pid=11, start_ticks=2, parent_pid=10, name="python", command=("python", "a.py"), python=True,
        torch_loaded=torch_loaded,
    )  # fmt: skip
    history = History((Record(0.0, one) for one in (shell, python)), 25.0)
    return judge(Case(history, session(), ())).summary


def test_a_tree_without_torch_is_said_to_be_none_that_trains() -> None:
    """With the names of what is there."""
    assert summary(False) == "no training is seen: no process of this tree (bash 10, python 11) has torch loaded"


def test_what_is_hidden_or_has_torch_is_not_said_to_be_none() -> None:
    """Missing is not zero."""
    assert not any("no training is seen" in summary(loaded) for loaded in (None, True))


# Where a training thread went on since its last stack, nobody knows yet what it waits for: its next stack is awaited.


PID, HELPER = 700, 701
OTHER, ANSWERS, QUESTIONS = 4, 5, 6
LIMIT_SECONDS = 1800.0  # a shorter one would end the wait soon
FIT = (Frame("fit", "/app/train.py", 20), Frame("<module>", "/app/train.py", 60))
ASKED = (Frame("serve", "/app/helper.py", 8), Frame("<module>", "/app/helper.py", 30))


READS = Wait(call="read", number=0, kind="read", fd=QUESTIONS, forever=True)


def polling(fd: int, seconds: float) -> Wait:
    """What ends by itself after so many seconds more."""
    return Wait(call="poll", number=7, kind="poll", polled=(PolledFile(fd=fd, events=1),), remaining_seconds=seconds)


def verdict(last_stack: float, at: float, went_on: float) -> Verdict:
    """A program that waits up to half an hour for a helper, after it waited for something else.

    The helper waits for questions, and nobody else holds their pipe any more.
    """
    history = History(at=at)
    for pid, parent in ((PID, 1), (HELPER, PID)):
        history.add(0.0, Process(pid=pid, start_ticks=9, parent_pid=parent, name="python", command=("python", "x.py"),
                                 python=True, torch_loaded=pid == PID))  # fmt: skip
    answers = Descriptor(pid=PID, fd=ANSWERS, kind="pipe", target="pipe:[1]", writers=(HELPER,), readers=(PID,))
    questions = Descriptor(
        pid=HELPER, fd=QUESTIONS, kind="pipe", target="pipe:[2]", writers=(HELPER,), readers=(HELPER,)
    )
    history.add(went_on + 0.3, answers)
    history.add(0.5, questions)
    for second in range(1, int(at) + 1):
        on = second >= went_on
        wait = polling(ANSWERS, went_on + LIMIT_SECONDS - second) if on else polling(OTHER, went_on - second)
        history.add(second, Thread(pid=PID, tid=PID, name="python", state="S", cpu_seconds=5.0, wait=wait, run_seconds=5.0,
                                   voluntary_switches=50 + on, ran_ago_seconds=second - went_on * on))  # fmt: skip
        history.add(second, Thread(pid=HELPER, tid=HELPER, name="python", state="S", cpu_seconds=1.0, wait=READS,
                                   run_seconds=1.0, voluntary_switches=9, ran_ago_seconds=second + 30.0))  # fmt: skip
        if second <= last_stack:
            history.add(second, Stack(pid=PID, tid=PID, frames=FIT, samples=20, span_seconds=1.0))
        history.add(second, Stack(pid=HELPER, tid=HELPER, frames=ASKED, samples=20, span_seconds=1.0))
    return judge(Case(history, session(mode="attach", root_pids=(PID,))))


def test_a_hang_is_not_told_from_the_stack_before_last() -> None:
    """It may have come from a wait that was over to one that ends in a moment."""
    assert verdict(last_stack=18.0, at=20.0, went_on=18.5).state != "hung"


def test_a_hang_is_told_once_the_stack_is_of_now() -> None:
    """The same wait, seen by a new stack: or by none, where none comes for as long as one may take."""
    assert verdict(last_stack=20.0, at=20.0, went_on=1.0).state == "hung"
    assert verdict(last_stack=3.0, at=20.0, went_on=4.0).state == "hung"


# Where py-spy is missing or denied: what the kernel alone tells of a worker, and what is advised then.


CASE = RECORDINGS / "stuck_worker" / "fires" / "told_without_stacks"
TRAINER, SLEEPER, IDLE = 28159, 28335, 28336
LOCK = Wait(call="futex", number=202, kind="futex", forever=True)


def judged_without_stacks(patience: float = 60.0, advice: str | None = None, **waits: Wait) -> Verdict:
    """The recorded worker that sleeps for days, with other waits (by ``p`` and pid), patience, or advice on what py-spy lacks."""
    recording, at = load_case(CASE), expected_of(CASE).at

    def told(reading: Reading) -> Reading:
        if isinstance(reading, Thread) and reading.tid == reading.pid and f"p{reading.pid}" in waits:
            return msgspec.structs.replace(reading, wait=waits[f"p{reading.pid}"])
        if isinstance(reading, ProbeCall) and advice is not None:
            return msgspec.structs.replace(reading, advice=advice)
        return reading

    records = tuple(msgspec.structs.replace(one, reading=told(one.reading)) for one in recording.records)
    session = msgspec.structs.replace(recording.session, conditions={"patience_seconds": patience})
    return diagnose(replace(recording, records=records, session=session), at)


def test_the_kernel_alone_names_the_worker_that_sleeps_for_days() -> None:
    """Less surely than with its stack."""
    verdict = judged_without_stacks()

    assert (verdict.state, verdict.cause) == ("hung", "stuck_worker")
    assert verdict.confidence == 0.65
    assert f"DataLoader worker {SLEEPER} sleeps for another 11 d 13 h" in verdict.summary


def test_until_the_patience_is_over_it_is_a_suspicion_with_a_countdown() -> None:
    """A sleep that outlasts even a long patience."""
    verdict = judged_without_stacks(patience=3600.0)

    assert (verdict.state, verdict.cause) == ("inconclusive", None)
    assert verdict.suspect is not None
    assert verdict.suspect.cause == "stuck_worker"
    assert verdict.suspect.decides_in_seconds > 60.0


def test_a_loaders_worker_never_waits_for_a_lock_for_so_long() -> None:
    """It is idle in a poll of its queue that times out again and again."""
    assert judged_without_stacks(p28335=LOCK).cause == "stuck_worker"


@pytest.mark.parametrize("left", [2.0, 30.0])
def test_a_worker_that_wakes_soon_is_not_hung(left: float) -> None:
    """The kernel knows until when it sleeps. A long sleep is reported as work that the training thread waits for."""
    nap = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=left)

    verdict = judged_without_stacks(p28335=nap)

    assert verdict.state == ("busy" if left > 10.0 else "inconclusive")


def test_workers_that_are_all_idle_are_not_to_blame() -> None:
    """Both wait for their next task: what the training thread does then, it does itself."""
    idle = next(
        one.reading.wait
        for one in load_case(CASE).records
        if isinstance(one.reading, Thread) and one.reading.tid == IDLE
    )
    assert idle is not None
    nap = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=4.0)

    assert judged_without_stacks(p28335=idle, p28159=nap).cause is None


@pytest.mark.parametrize(
    ("advice", "first"), [("pip install py-spy", "pip install py-spy"), ("", "perfwatch doctor 28335")]
)
def test_what_would_let_it_read_stacks_is_advised_in_place_of_a_dump(advice: str, first: str) -> None:
    """``perfwatch capture stacks`` would fail there as well."""
    verdict = judged_without_stacks(advice=advice)

    assert verdict.next == ("set DataLoader(timeout=...) to turn this hang into an error", first)
