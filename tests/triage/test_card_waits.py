"""Threads that wait for their card: streams, callbacks, kernels that may never end."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.gauntlet.score import CONFIDENT
from perfwatch.recording.recording import Record, Recording
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.triage.rules import by_graph, python
from perfwatch.verdict import Finding, Level, Verdict
from perfwatch_probes.readings import (
    Frame,
    GpuActivity,
    GpuBinding,
    GpuProcess,
    Process,
    Reading,
    SourceLine,
    Stack,
    Thread,
    Traffic,
    Wait,
)
from tests.cards import UUID, bound, history_until
from tests.cards import load as card_look
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
from tests.training import BACKWARD, ENGINE, FORWARD, OPTIMIZER, PID, READS_LOSS, SLEEP, TORCH, Training, level
from tests.training import TRAIN as IDLE_STREAMS_TRAIN
from tests.triage.rank_looks import FIRST, FOR_EVER, LIB, MODULE, STOPPED, TRAIN, Frames, job, looks, runs, stands
from tests.triage.rank_looks import TORCH as COLLECTIVE_CALLBACKS_TORCH
from tests.triage.rank_looks import judged as collective_callbacks_judged

# A thread that waits for its card looks like a computation; only the card tells the two apart.


STEPS = [FORWARD, BACKWARD, OPTIMIZER, READS_LOSS]
UNKNOWN = ("inconclusive", None)
ON_THE_HOST = ("computing_on_host", "endless_python", "cpu_training")


def named(verdict: Verdict) -> tuple[str, str | None]:
    """State and cause."""
    return verdict.state, verdict.cause


@pytest.mark.parametrize("load", ["one_spinning_kernel", "stalled_all_reduce"])
def test_a_thread_at_item_and_a_kernel_that_does_nothing_is_a_hang(load: str) -> None:
    """State R at 100 % of a core, 100 % utilisation, and nothing moves."""
    verdict = Training().goes_on(10, STEPS, load="bf16_matmul").goes_on(9, [READS_LOSS], load=load).verdict()

    assert named(verdict) == ("hung", "stuck_kernel")
    assert verdict.culprits[0].gpu == 0
    assert "earlier in this run" in verdict.evidence[0].expected


@pytest.mark.parametrize("load", ["bf16_matmul", "elementwise", "fp32_matmul"])
def test_the_same_thread_with_a_card_at_work_waits_for_good_reason(load: str) -> None:
    """A long kernel, a full queue: it is served."""
    verdict = Training().goes_on(12, [READS_LOSS], load=load).verdict()

    assert verdict.state in ("healthy", "slow")
    assert verdict.cause not in (*ON_THE_HOST, "synchronising")


def test_the_same_thread_without_a_card_is_judged_as_before() -> None:
    """A job on the CPU, on a machine with a GPU that others use: nothing of it may be taken for this job's progress."""
    job = Training(binding=GpuBinding(pid=PID, cuda=False))
    verdict = job.goes_on(12, [(Frame("crunch", "/app/train.py", 30),)], load="bf16_matmul").verdict()

    assert named(verdict) == ("busy", "computing_on_host")


def solves(*others: tuple[Frame, ...], load: str = "elementwise", seconds: float = 20.0) -> Verdict:
    """After steps, a ``while`` loop of the program's own in one forward pass, which asks its card for a value in each turn."""
    outer = (Frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1784), Frame("train", "/app/train.py", 12))
    turns = [(Frame("solve", "/app/solver.py", line), *outer) for line in (14, 18)]
    job = Training()
    for line in (14, 18):
        job.add(
            SourceLine(file="/app/solver.py", line=line, text="r = f(y).item()", calls=("f", "item"), loops=("while",))
        )
    return job.goes_on(10, STEPS, load=load).goes_on(seconds, [*turns[:1], *others, *turns[1:]], load=load).verdict()


def test_a_loop_that_asks_its_card_in_each_turn_is_suspected_after_one_hang_timeout_and_reported_after_several() -> (
    None
):
    """A solver that rejects each of its steps keeps the card at work, and none of the training's own steps comes."""
    soon, later = solves(), solves(seconds=70.0)

    assert named(soon) == named(later) == ("inconclusive", None)
    assert later.suspect is not None
    assert later.suspect.cause == "endless_python"
    assert 200.0 < later.suspect.decides_in_seconds < 300.0
    assert named(solves(seconds=320.0)) == ("hung", "endless_python")


def test_a_loop_that_is_left_between_two_values_is_not_suspected() -> None:
    """It ends, and another layer is next."""
    assert solves(FORWARD).suspect is None


def test_an_endless_loop_is_still_one_where_the_card_is_idle() -> None:
    """It launches nothing: the card has nothing to do with it."""
    loop = [(Frame("collate", "/app/train.py", line),) for line in (31, 32, 33)]
    verdict = Training().goes_on(70, loop, load="idle_context", owns_gil=True).verdict()

    assert verdict.cause in (None, "endless_python")
    assert verdict.state in ("hung", "inconclusive")


def test_autograds_thread_spins_while_the_training_thread_sleeps() -> None:
    """The chain leads from the one to the other, and to the card."""
    job = Training().goes_on(6, STEPS, load="bf16_matmul", engine=0.5)
    verdict = job.goes_on(9, [BACKWARD], load="one_spinning_kernel", run_share=0.0, wait=SLEEP, engine=1.0).verdict()

    assert named(verdict) == ("hung", "stuck_kernel")
    assert [link.tid for link in verdict.wait_chain] == [PID, ENGINE]
    assert "pt_autograd_0" in verdict.wait_chain[0].waits_for


def test_autograds_thread_at_work_for_a_card_at_work_is_training() -> None:
    """With a full queue it spins in the launch of the next kernel."""
    verdict = Training().goes_on(12, [BACKWARD], load="bf16_matmul", run_share=0.0, wait=SLEEP, engine=1.0).verdict()

    assert named(verdict) == ("healthy", "gpu_bound")


def test_an_event_that_sleeps_instead_of_spinning_is_not_a_deadlock() -> None:
    """A futex without a timeout, below torch's own synchronisation."""
    waits = (Frame("synchronize", f"{TORCH}/cuda/streams.py", 254), *READS_LOSS)
    verdict = (
        Training()
        .goes_on(6, STEPS, load="bf16_matmul")
        .goes_on(9, [waits], load="one_spinning_kernel", run_share=0.0, wait=SLEEP)
        .verdict()
    )

    assert named(verdict) == ("hung", "stuck_kernel")


def test_what_a_neighbour_does_on_the_card_is_not_this_jobs_progress() -> None:
    """The card works, but perhaps for another process: it is no evidence of a healthy job."""
    job = Training()
    for second in range(12):
        job.history.at = float(second)
        job.add(GpuProcess(uuid=UUID, pid=4711, local_pid=4711, sm_utilisation=0.9))
    job.history.at = 0.0
    verdict = job.goes_on(12, [READS_LOSS], load="bf16_matmul").verdict()

    assert verdict.state not in ("healthy", "hung")


def test_ranks_that_are_not_seen_may_be_what_the_kernel_waits_for() -> None:
    """One of two ranks is on another machine: abstain, and say so."""
    job = Training()
    job.add(
        Process(
            pid=PID, start_ticks=1, parent_pid=1, name="python", command=("python",), python=True, rank=0, world_size=2
        )
    )
    verdict = job.goes_on(6, STEPS, load="bf16_matmul").goes_on(9, [READS_LOSS], load="stalled_all_reduce").verdict()

    assert verdict.cause != "stuck_kernel"
    assert any(one.witness == "ranks" for one in verdict.missing)


@pytest.mark.parametrize(("mebibytes", "named"), [(40, ("slow", "underfilled_gpu")), (0, UNKNOWN), (None, UNKNOWN)])
def test_a_card_that_only_polls_serves_its_rank_while_data_comes(
    mebibytes: int | None, named: tuple[str, str | None]
) -> None:
    """A slow network makes a long collective, and no hang; without data, or a witness of it, the card says nothing."""
    job = Training()
    for at in (3, 8, 13) if mebibytes is not None else ():
        received = (mebibytes or 0) * 2**20 * at
        job.history.at = float(at)
        job.add(Traffic(pid=PID, connections=2, received_bytes=received, sent_bytes=0, queued_bytes=0, retransmits=0))
    job.history.at = 0.0
    verdict = job.goes_on(14, [READS_LOSS], load="all_reduce_over_sockets").verdict()

    assert (verdict.state, verdict.cause) == named
    assert ("whose kernel only polls" in verdict.summary) is (named == UNKNOWN)


def test_without_the_cards_counters_a_hang_is_less_sure() -> None:
    """It takes the full hang timeout too: without counters the end of one kernel and the start of the next cannot be seen."""
    seen = Training().goes_on(10, STEPS, load="bf16_matmul").goes_on(9, [READS_LOSS], load="one_spinning_kernel")
    blind = Training(monitored=False).goes_on(10, STEPS, load="bf16_matmul")
    suspected = blind.goes_on(9, [READS_LOSS], load="one_spinning_kernel").verdict().suspect
    blind.goes_on(60, [READS_LOSS], load="one_spinning_kernel")

    assert suspected is not None
    assert suspected.cause == "stuck_kernel"

    assert named(seen.verdict()) == named(blind.verdict()) == ("hung", "stuck_kernel")
    assert blind.verdict().confidence < seen.verdict().confidence


def test_a_kernel_that_computes_in_registers_gets_the_full_hang_timeout() -> None:
    """It may converge yet."""
    job = Training().goes_on(6, STEPS, load="bf16_matmul")
    began = job.history.at
    job.goes_on(10, [READS_LOSS])
    for number in range(100):
        job.history.add(
            began + number * 0.1,
            GpuActivity(
                uuid=UUID,
                interval_seconds=0.1,
                graphics=1.0,
                sm_active=1.0,
                tensor=0.0,
                dram=0.0,
                fp32=0.34,
                fp16=0.0,
                fp64=0.0,
            ),
        )
    verdict = job.verdict()

    assert verdict.state == "inconclusive"
    assert verdict.suspect is not None
    assert verdict.suspect.cause == "stuck_kernel"
    assert verdict.suspect.decides_in_seconds == pytest.approx(50, abs=2)


def test_a_rank_that_never_joins_is_named_and_not_the_kernel_that_waits_for_it() -> None:
    """The recorded series: rank 0 at .item() behind a collective at 100 % utilisation, rank 1 asleep, its card idle."""
    history = history_until(30.0)
    asleep = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=999_000.0)
    for rank, uuid in ((0, "GPU-0"), (1, "GPU-1")):
        pid = PID + rank
        process = Process(
            pid=pid,
            start_ticks=rank,
            parent_pid=1,
            name="python",
            command=("python",),
            python=True,
            rank=rank,
            world_size=2,
        )
        for reading in (process, bound(pid, uuid), Stack(pid=pid, tid=pid + 90, frames=FORWARD)):
            history.add(0.0, reading)
        for number in range(24):
            at = 18.0 + 0.5 * number
            ran = at if rank == 0 else 9.0
            history.add(
                at,
                Thread(
                    pid=pid,
                    tid=pid,
                    name="python",
                    state="R" if rank == 0 else "S",
                    cpu_seconds=ran,
                    run_seconds=ran,
                    voluntary_switches=0,
                    ran_ago_seconds=None if rank == 0 else at - 17.8,
                    wait=asleep if rank else None,
                ),
            )
            history.add(at, Stack(pid=pid, tid=pid, frames=READS_LOSS, samples=5, span_seconds=0.4, owns_gil=False))
    verdict = judge(Case(history, session(root_pids=(PID, PID + 1))))

    assert named(verdict) == ("hung", "stalled_collective")
    assert verdict.culprits[0].rank == 1


def test_a_hang_that_began_long_ago_is_not_waited_for_again() -> None:
    """Autograd's thread sleeps since then, and the kernel remembers since when."""
    job = Training()
    engine = Thread(pid=PID, tid=ENGINE, name="pt_autograd_0", state="S", cpu_seconds=9.0, ran_ago_seconds=300.0)
    job.add(engine)
    early = job.goes_on(9, [READS_LOSS], load="one_spinning_kernel").verdict()
    late = job.goes_on(2, [READS_LOSS], load="one_spinning_kernel").verdict()

    assert early.state == "inconclusive"  # the card itself is watched for ten seconds, whatever is remembered
    assert named(late) == ("hung", "stuck_kernel")
    assert (late.silent_seconds or 0) >= 300.0
    assert any(one.witness == "engine" for one in late.evidence)


PRINTS = Frame("train", "/app/train.py", 33)
UNSEEN = GpuBinding(pid=PID, cuda=True)


@pytest.mark.parametrize("binding", [None, UNSEEN])
def test_a_value_that_is_waited_for_is_no_output_and_no_computation_where_the_card_cannot_be_read(
    binding: GpuBinding | None,
) -> None:
    """A container without the driver's library, in which the job has CUDA all the same; without CUDA both are what they look like."""
    printing, reading = Training(card=False), Training(card=False)
    printing.add(
        SourceLine(file="/app/train.py", line=33, text="print(step, loss.item())", calls=("print", "loss.item"))
    )
    for one, stacks in ((printing, [FORWARD, (PRINTS,), (PRINTS,), BACKWARD]), (reading, [READS_LOSS])):
        if binding is not None:
            one.add(binding)
        one.goes_on(20, stacks, writes=2)

    seen = binding is None
    assert (printing.verdict().cause == "slow_output") is seen
    assert (reading.verdict().cause == "computing_on_host") is seen


def test_a_training_on_a_card_that_cannot_be_read_is_not_called_one_on_the_cpu() -> None:
    """That it makes progress is all that is known, and the GPU is reported as missing."""
    job = Training(card=False)
    job.add(UNSEEN)
    verdict = job.goes_on(20, STEPS).verdict()

    assert named(verdict) == ("healthy", "balanced")
    assert [one.witness for one in verdict.missing] == ["gpu"]


# A callback that a card's stream waits for, and that waits for a lock of whoever waits for the card; and its look-alikes.


FOLDER = RECORDINGS / "deadlocked_locks" / "fires" / "callback_of_a_card"


def judged(change: Callable[[Reading], Reading] = lambda reading: reading) -> Verdict:
    """The recorded job, with readings changed."""
    whole, at = load_case(FOLDER), expected_of(FOLDER).at
    history = History()
    for one in whole.records:
        if one.at <= at:
            history.add(one.at, change(one.reading))
    history.at = at
    return judge(Case(history, whole.session, whole.events))


def test_both_lines_and_the_lock_are_named() -> None:
    """The thread that spins, and the one that its card waits for."""
    verdict = judged()

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert "holds self.lock" in verdict.summary
    assert [one.frame for one in verdict.culprits] == ["report (monitor.py:33)", "_on_done (monitor.py:18)"]


def test_a_thread_of_the_program_that_asks_for_the_lock_keeps_no_card() -> None:
    """Whoever holds the lock may be computing: the line is called neither a hang nor work."""

    def started(reading: Reading) -> Reading:
        if isinstance(reading, Stack) and any("_on_done" in frame.function for frame in reading.frames):
            return structs.replace(reading, thread="Thread-1 (watch)")
        return reading

    assert judged(started).state == "inconclusive"


def test_another_lock_keeps_nobody() -> None:
    """The callback asks for a lock that the training thread does not hold."""

    def other(reading: Reading) -> Reading:
        if isinstance(reading, SourceLine) and reading.text.startswith("with self.lock"):
            return structs.replace(reading, text="with self.log:", within=("self.log",))
        return reading

    assert judged(other).state == "inconclusive"


def test_a_card_at_work_will_come_to_the_callback() -> None:
    """A long kernel before it, and time heals it."""

    def works(reading: Reading) -> Reading:
        busy = isinstance(reading, GpuActivity)
        return structs.replace(reading, graphics=1.0, sm_active=0.9, dram=0.3, tensor=0.4) if busy else reading

    assert judged(works).cause != "deadlocked_locks"


# A thread that waits for what a collective's callback brings waits for the other ranks, not for a lock.


GLOO, FLUSHER, BESIDE = 900, 901, 902
UNTIL = STOPPED + 90.0
TAKES_UP: Frames = (
    Frame("wait", LIB + "threading.py", 327),
    Frame("get", LIB + "queue.py", 171),
    Frame("finish", TRAIN, 33),
    MODULE,
)
TAKES_A_LOCK: Frames = (Frame("log", TRAIN, 51), MODULE)
FLUSHES: Frames = (Frame("flush", TRAIN, 70), Frame("_bootstrap", LIB + "threading.py", 1002))
VALIDATES: tuple[Frames, ...] = tuple(
    (Frame("forward", COLLECTIVE_CALLBACKS_TORCH + f"nn/modules/{kind}.py", 134), Frame("validate", TRAIN, 46), MODULE)
    for kind in ("linear", "activation", "container")
)
ASKS: Frames = (Frame("read", LIB + "socket.py", 700), Frame("fetch", TRAIN, 91), MODULE)
WITHIN_THE_TIMEOUT = Wait(call="futex", number=202, kind="futex", remaining_seconds=1800.0)
READS = Wait(call="recvfrom", number=45, kind="recv", fd=9, forever=True)


def taking_up(gloo: Wait, frames: Frames = TAKES_UP) -> History:
    """The second of two ranks waits in Python, beside a thread of gloo's in such a wait."""
    history = job(2)
    stands(history, FIRST + 1, frames, FOR_EVER, UNTIL)
    for at in looks(STOPPED, UNTIL):
        history.add(at, Thread(pid=FIRST + 1, tid=GLOO, name="pt_gloo_runloop", state="S", cpu_seconds=1.0, run_seconds=1.0,
                               voluntary_switches=50, ran_ago_seconds=at - STOPPED, wait=gloo))  # fmt: skip
    return history


def validating(history: History, at: float = UNTIL) -> Verdict:
    """What is said while the first rank goes through its validation set."""
    runs(history, FIRST, VALIDATES, STOPPED, UNTIL)
    return collective_callbacks_judged(history, at)


@pytest.mark.parametrize("after_seconds", [7.0, 80.0])
def test_a_rank_that_takes_up_what_the_backend_reduces_waits_for_the_one_that_validates(after_seconds: float) -> None:
    """Its queue is filled by gloo's own thread as soon as all ranks have come to the collective."""
    verdict = validating(taking_up(WITHIN_THE_TIMEOUT), STOPPED + after_seconds)

    assert (verdict.state, verdict.cause) == ("busy", "evaluating")
    assert {one.rank for one in verdict.culprits} == {0}


def test_a_rank_that_never_comes_to_the_collective_is_blamed_and_not_the_one_that_waits_for_its_callback() -> None:
    """It waits for the network."""
    history = taking_up(WITHIN_THE_TIMEOUT)
    stands(history, FIRST, ASKS, READS, UNTIL)

    verdict = collective_callbacks_judged(history, UNTIL)

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert {one.rank for one in verdict.culprits} == {0}


def test_a_queue_that_no_collective_can_fill_is_one_that_nobody_fills() -> None:
    """Gloo's thread waits for its next task: no collective is under way."""
    verdict = validating(taking_up(FOR_EVER))

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert verdict.confidence > 0.9


def test_two_threads_that_wait_for_locks_explain_each_other_whatever_is_under_way() -> None:
    """A callback brings news; that it releases a lock for which two ask is far less likely."""
    history = taking_up(WITHIN_THE_TIMEOUT, TAKES_A_LOCK)
    stands(history, FIRST + 1, FLUSHES, FOR_EVER, UNTIL, tid=FLUSHER)

    verdict = validating(history)

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")


def test_beside_a_thread_that_moves_it_is_no_deadlock_while_another_rank_may_come() -> None:
    """Another thread might fill the queue, and so might the collective that the first rank has yet to join."""
    history = taking_up(WITHIN_THE_TIMEOUT)
    runs(history, FIRST + 1, (FLUSHES,), STOPPED, UNTIL, tid=BESIDE, share=0.03)

    verdict = validating(history)

    assert (verdict.state, verdict.cause) == ("busy", "evaluating")


# A stream that stops at something which never comes: the card has nothing to do, and the thread that waits for it spins.


STEP = (FORWARD, BACKWARD, OPTIMIZER, READS_LOSS)
SYNCHRONISES = (Frame("synchronize", f"{TORCH}/cuda/streams.py", 108), Frame("train", IDLE_STREAMS_TRAIN, 31))


def waits(seconds: float, at: tuple[Frame, ...] = READS_LOSS, load: str = "idle_context", **line: object) -> Training:
    """A loop at work for ten seconds, which then spins at one line."""
    job = Training()
    if line:
        job.add(SourceLine(file=IDLE_STREAMS_TRAIN, line=20, **line))  # type: ignore[arg-type]
    job.goes_on(10.0, STEP, load="bf16_matmul", engine=0.5)
    return job.goes_on(seconds, [at], load=load, engine=0.0)


@pytest.mark.parametrize("at", [READS_LOSS, SYNCHRONISES])
def test_who_waits_for_a_card_with_nothing_to_do_hangs_when_the_patience_is_over(at: tuple[Frame, ...]) -> None:
    """At the reading of a loss as at a call that synchronises; until then it is suspected."""
    early, late = waits(40.0, at).verdict(), waits(70.0, at).verdict()

    assert (early.state, early.suspect.cause if early.suspect else None) == ("inconclusive", "stuck_kernel")
    assert (late.state, late.cause) == ("hung", "stuck_kernel")
    assert "nothing to do" in late.summary
    assert late.culprits[0].frame is not None
    assert late.culprits[0].frame.startswith("train (train.py:")


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("spectrum = torch.linalg.svd(weights).S.sum().item()", ("item", "sum", "torch.linalg.svd")),
        ("kinds = labels.unique().tolist()", ("tolist", "labels.unique")),
        ("best = sorted(scores)[0].item()", ("item", "sorted")),
    ],
)
def test_a_line_that_may_compute_on_the_host_is_no_wait_for_a_card(text: str, calls: tuple[str, ...]) -> None:
    """The same names are called on tensors in host memory, and what else the line calls may take its time."""
    assert waits(70.0, text=text, calls=calls).verdict().state != "hung"


def test_a_card_that_had_work_a_moment_ago_serves_the_thread() -> None:
    """A long kernel, and then a pause."""
    job = waits(50.0, load="fp32_matmul").goes_on(20.0, [READS_LOSS], load="idle_context", engine=0.0)

    assert job.verdict().state != "hung"


def test_a_thread_that_works_meanwhile_may_be_what_the_stream_waits_for() -> None:
    """A host function that writes out what the card has made."""
    job = waits(70.0)
    for second in range(10, 80):
        one = Thread(pid=PID, tid=PID + 9, name="cuda", state="R", cpu_seconds=0.5 * second, run_seconds=0.5 * second)
        job.history.add(float(second), one)

    assert job.verdict().state != "hung"


# torch's engine at a full core beside a training thread that waits: it computes, or spins for a card.


WORKER = Thread(
    pid=PID,
    tid=755,
    name="python",
    state="R",
    cpu_seconds=0.0,
    run_seconds=0.0,
    run_delay_seconds=0.0,
    voluntary_switches=0,
    read_calls=0,
    write_calls=0,
)


@pytest.mark.parametrize(("load", "works"), [("bf16_matmul", True), ("one_spinning_kernel", False)])
def test_an_engine_that_spins_for_a_card_that_only_polls_is_no_work(load: str, works: bool) -> None:
    """Nobody could read the stacks. What the card waits for is another rank's, and comes no sooner for that."""
    job = Training().goes_on(8.0, [FORWARD, BACKWARD, OPTIMIZER], load="bf16_matmul", engine=0.5)
    case = job.goes_on(20.0, [()], load=load, run_share=0.0, wait=SLEEP, engine=1.0).case()

    found = by_graph.waiting_on_work(case)

    assert isinstance(found, Finding) is works


def test_a_thread_of_the_program_works_whatever_the_card_waits_for() -> None:
    """The other ranks wait for this one, whose training thread waits for it."""
    job = Training().goes_on(8.0, [FORWARD, BACKWARD, OPTIMIZER], load="bf16_matmul")
    for second in range(20):
        job.goes_on(1.0, [()], load="one_spinning_kernel", run_share=0.0, wait=SLEEP)
        job.add(structs.replace(WORKER, cpu_seconds=float(second), run_seconds=float(second)))

    assert isinstance(by_graph.waiting_on_work(job.case()), Finding)


# A card whose newest kernel may never end, and a program that only decodes: what the window shows besides is not of now.


NEWEST_KERNEL_STEPS = [FORWARD, BACKWARD, OPTIMIZER]


@pytest.mark.parametrize("before", ["bf16_matmul", "late_peer"])
def test_a_card_that_has_spun_for_longer_than_ever_is_neither_well_nor_merely_empty(before: str) -> None:
    """The host launches on for a while beside a kernel that never ends: the end of that is not known yet."""
    verdict = (
        Training()
        .goes_on(8.0, NEWEST_KERNEL_STEPS, load=before)
        .goes_on(4.0, NEWEST_KERNEL_STEPS, load="one_spinning_kernel")
        .verdict()
    )

    assert (verdict.state, verdict.cause) == ("inconclusive", None)


@pytest.mark.parametrize(("now", "told"), [([FORWARD], False), (NEWEST_KERNEL_STEPS, True)])
def test_who_only_decodes_does_not_train_on_a_card_that_waits_for_launches(
    now: list[tuple[Frame, ...]], told: bool
) -> None:
    """Item after item, without a gradient: small kernels lie in the nature of that."""
    job = Training().goes_on(8.0, NEWEST_KERNEL_STEPS, load="bf16_matmul").goes_on(6.0, now, load="tiny_kernels")

    assert isinstance(python.host_bound_python(job.case()), Finding) is told


def test_who_makes_steps_trains_however_seldom_a_backward_pass_is_met() -> None:
    """All but the head is frozen: the steps that are counted say so."""
    job = Training().steps(1, 0.05).goes_on(8.0, NEWEST_KERNEL_STEPS, load="bf16_matmul").steps(160, *[0.05] * 20)
    job.goes_on(6.0, [FORWARD], load="tiny_kernels").steps(280, *[0.05] * 20, ago=0.05)

    assert isinstance(python.host_bound_python(job.case()), Finding)


@pytest.mark.parametrize(
    ("loads", "told"),
    [
        ([("idle_context", 1.5), ("bf16_matmul", 3.5)], False),
        ([("idle_context", 0.5), ("bf16_matmul", 1.0)] * 4, True),
        ([("idle_context", 1.5), ("bf16_matmul", 4.0), ("idle_context", 1.5)], True),
        ([("tiny_kernels", 1.5), ("bf16_matmul", 3.5)], True),
    ],
)
def test_a_card_that_was_idle_once_and_full_since_waits_for_no_launches(
    loads: list[tuple[str, float]], told: bool
) -> None:
    """A rollout ended and updates began; a card that idles again and again, or has gaps while it works, waits."""
    job = Training()
    for load, seconds in loads:
        job.goes_on(seconds, NEWEST_KERNEL_STEPS, load=load)

    assert isinstance(python.host_bound_python(job.case()), Finding) is told


@pytest.mark.parametrize(("seconds", "state"), [(9, "inconclusive"), (50, "inconclusive"), (62, "hung")])
def test_the_first_kernel_that_is_seen_gets_a_minute(seconds: float, state: str) -> None:
    """Nothing says how long the kernels of this job take; after a minute it is less sure than with a history."""
    verdict = Training().goes_on(seconds, [READS_LOSS], load="one_spinning_kernel").verdict()
    known = (
        Training()
        .goes_on(8, NEWEST_KERNEL_STEPS, load="bf16_matmul")
        .goes_on(9, [READS_LOSS], load="one_spinning_kernel")
    )

    assert verdict.state == state
    assert (verdict.cause or (verdict.suspect and verdict.suspect.cause)) == "stuck_kernel"
    assert (known.verdict().state, level(known.verdict().confidence)) == ("hung", "certain")
    assert state != "hung" or level(verdict.confidence) == "medium"


@pytest.mark.parametrize("first", [3.0, 7.0, 9.5])
def test_a_kernel_that_takes_ten_seconds_in_each_step_is_no_hang(first: float) -> None:
    """Attached in the midst of one: at no moment of four steps is it hung."""
    job, states = Training().goes_on(first, [READS_LOSS], load="one_spinning_kernel"), set()
    for _ in range(4):
        job.goes_on(0.5, NEWEST_KERNEL_STEPS, load="tiny_kernels")
        for _ in range(5):
            states.add(job.goes_on(1.9, [READS_LOSS], load="one_spinning_kernel").verdict().state)

    assert "hung" not in states
    assert job.goes_on(40, [READS_LOSS], load="one_spinning_kernel").verdict().cause == "stuck_kernel"


@pytest.mark.parametrize(
    ("passes", "age_seconds", "state"),
    [(200, 60.0, "hung"), (11, 20.0, "inconclusive"), (200, 2000.0, "inconclusive")],
)
def test_the_host_remembers_how_often_a_backward_pass_ran(passes: int, age_seconds: float, state: str) -> None:
    """Attached after the last step; few passes, or some seconds for each, say nothing against a kernel of eleven seconds."""
    job = Training()
    job.add(
        Process(pid=PID, start_ticks=1, parent_pid=1, name="python", command=("python", "train.py"), python=True,
                torch_loaded=True, age_seconds=age_seconds),
        Thread(pid=PID, tid=ENGINE, name="pt_autograd_0", state="S", cpu_seconds=9.0, run_seconds=9.0,
               voluntary_switches=passes, ran_ago_seconds=0.1),
    )  # fmt: skip

    assert job.goes_on(11, [READS_LOSS], load="one_spinning_kernel").verdict().state == state


# Two ranks whose cards only poll, each behind a receive of its own, where nobody may ask a flight recorder.


CASE = RECORDINGS / "wedged_collective" / "lookalike" / "both_only_poll_behind_receives"
SHORT_PATIENCE = 20.0  # seconds; the recording is 25 s long


@pytest.fixture(scope="module")
def impatient() -> Recording:
    """Recorded on two H100: a pipeline whose stages disagree on the number of micro-batches; asked with a short patience."""
    whole = load_case(CASE)
    conditions = {**whole.session.conditions, "patience_seconds": SHORT_PATIENCE}
    return replace(whole, session=msgspec.structs.replace(whole.session, conditions=conditions))


def test_where_all_wait_in_one_helper_its_callers_tell() -> None:
    """A helper that synchronises after each send and receive: the stages came there from lines of their own."""
    verdict = diagnose(load_case(CASE.parent / "both_poll_in_one_helper"))

    assert verdict.suspect is not None
    assert verdict.suspect.cause == "mismatched_collective"
    assert [one.frame for one in verdict.culprits] == ["step (schedule.py:22)", "step (schedule.py:33)"]


def test_it_is_suspected_while_the_patience_runs() -> None:
    """With a countdown, so that a one-shot look waits for it."""
    suspect = diagnose(load_case(CASE)).suspect

    assert suspect is not None
    assert (suspect.state, suspect.cause) == ("hung", "mismatched_collective")
    assert suspect.decides_in_seconds > 0.0


def test_beyond_it_the_job_hangs_and_nobody_claims_to_know_in_which_call(impatient: Recording) -> None:
    """Both ranks are named with their lines."""
    verdict = diagnose(impatient)

    assert (verdict.state, verdict.cause) == ("hung", "mismatched_collective")
    assert verdict.confidence < CONFIDENT
    assert [one.rank for one in verdict.culprits] == [0, 1]


def test_a_card_that_works_keeps_it_open(impatient: Recording) -> None:
    """One of the two may only be late."""
    first = min(one.reading.uuid for one in impatient.records if isinstance(one.reading, GpuActivity))
    records = tuple(_working(one) if _is_of(one, first) else one for one in impatient.records)

    assert diagnose(replace(impatient, records=records)).state != "hung"


def _is_of(record: Record, uuid: str) -> bool:
    return isinstance(record.reading, GpuActivity) and record.reading.uuid == uuid


def _working(record: Record) -> Record:
    busy = msgspec.structs.replace(record.reading, tensor=0.4, dram=0.3, sm_active=0.9)
    return msgspec.structs.replace(record, reading=busy)


# Ranks that stay at a line that waits for their cards, on which other jobs compute as well; nothing tells in which call they are.


AT_ITEM, AT_SYNC, NAPS = (Frame("log", TRAIN, 40),), (Frame("evaluate", TRAIN, 83),), (Frame("nap", TRAIN, 50),)
LINES = (
    SourceLine(file=TRAIN, line=40, text="total += loss.item()", calls=("loss.item",)),
    SourceLine(file=TRAIN, line=83, text="torch.cuda.synchronize()", calls=("torch.cuda.synchronize",)),
)
ELEVEN_DAYS = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=1e6)


def on_shared_cards(second: tuple[Frame, ...] | None, seconds: float) -> Verdict:
    """Rank 0 stays at ``.item()``; rank 1 at ``second``, or it goes on. Another job takes 60 % of either card."""
    history, until = job(2), STOPPED + seconds
    for line in LINES:
        history.add(0.5, line)
    for rank in (0, 1):
        pid, uuid = FIRST + rank, f"GPU-{rank}"
        history.add(0.5, GpuBinding(pid=pid, uuids=(uuid,), how="nvml", cuda=True))
        for at in looks(0.0, until):
            for look in card_look("bf16_matmul", uuid):
                history.add(at, look)
            for of, share in ((9000 + rank, 0.6), (pid, 0.4)):
                history.add(at, GpuProcess(uuid=uuid, pid=of, local_pid=of, sm_utilisation=share))
            history.add(
                at, Traffic(pid=pid, connections=2, received_bytes=9, sent_bytes=9, queued_bytes=0, retransmits=0)
            )
    runs(history, FIRST, [AT_ITEM], STOPPED, until)
    if second is NAPS:
        stands(history, FIRST + 1, NAPS, ELEVEN_DAYS, until)
    else:
        runs(history, FIRST + 1, STEPS if second is None else [second], STOPPED, until)
    return collective_callbacks_judged(history, until)


@pytest.mark.parametrize("second", [AT_ITEM, AT_SYNC])
def test_ranks_that_stay_at_cards_which_other_jobs_use_hang_after_the_full_timeout(second: tuple[Frame, ...]) -> None:
    """That these cards work is no sign of life of this job; a long queue of its own kernels would look the same for a while."""
    soon, late = on_shared_cards(second, 30.0), on_shared_cards(second, 79.0)

    assert soon.state == "inconclusive"
    assert (late.state, late.cause, late.confidence) == ("hung", "unknown", Level.MEDIUM)


def test_a_rank_that_stays_at_such_a_card_waits_for_the_one_that_never_comes() -> None:
    """The one that sleeps is the culprit, and not alone."""
    verdict = on_shared_cards(NAPS, 12.0)

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert [one.rank for one in verdict.culprits] == [1]


def test_a_rank_that_stays_at_such_a_card_while_the_other_one_trains_is_not_hung() -> None:
    """It waits for its turn."""
    assert on_shared_cards(None, 79.0).state not in ("hung", "healthy")
