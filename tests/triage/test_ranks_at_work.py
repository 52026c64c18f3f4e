"""Ranks that work while others wait for them: what they do, and how late it makes them."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.gauntlet.score import CONFIDENT
from perfwatch.recording.recording import Record, Recording
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, GpuBinding, Process, ProcessUsage, Reading, SourceLine, Stack, Thread, Wait
from tests.cards import bound, h200, load, under
from tests.recorded import RECORDINGS, load_case
from tests.training import TRAIN as LATENESS_TRAIN
from tests.training import confidence_in
from tests.triage.rank_looks import (
    BARRIER,
    FIRST,
    FOR_EVER,
    LIB,
    LOOK_SECONDS,
    MODULE,
    STEP,
    STOPPED,
    TORCH,
    TRAIN,
    Frames,
    job,
    judged,
    looks,
    process,
    runs,
    stands,
    uses,
)
from tests.triage.retold import retold

# A rank that works while the others wait for it: it computes, reads, writes or asks a server, and each of these may come to an end.


PATIENCE = 60.0
TOO_LONG = STOPPED + 5 * PATIENCE  # until then a loop that may come to its end is given time
SCORE = LIB + "site-packages/sacrebleu/metrics/base.py"
CALLS: Frames = (Frame("evaluate", TRAIN, 77), MODULE)
SCORES: tuple[Frames, ...] = tuple((Frame(inner, SCORE, 40), *CALLS) for inner in ("count", "match", "corpus_score"))
LINES = {
    "a library's call": SourceLine(
        file=TRAIN, line=77, text="bleu = corpus_score(said, meant)", calls=("corpus_score",)
    ),
    "not read": None,
}
HALF_AN_HOUR = Wait(call="futex", number=202, kind="futex", remaining_seconds=1800.0)  # of a group with a timeout
SPINS = Wait(call="", number=-1, kind="none")  # it does not sleep, but asks its card
AT_THE_LOSS: Frames = (Frame("step", TRAIN, 14), MODULE)
COUNTS = SourceLine(file=TRAIN, line=77, text="total += score(one)", calls=("score",), loops=("for",))
WAITS_FOR_A_CONDITION = SourceLine(file=TRAIN, line=77, text="ready = score()", calls=("score",), loops=("while",))


def computes(
    line: SourceLine | None, until: float, bytes_per_second: float = 0.0, trained: bool = True, wait: Wait = FOR_EVER
) -> History:
    """The first of three ranks, at full core, with changing stacks."""
    history = job(3, trained)
    if line is not None:
        history.add(1.0, line)
    runs(history, FIRST, SCORES, STOPPED, until, bytes_per_second=bytes_per_second)
    uses(history, FIRST, 0.95, bytes_per_second, until)
    for rank in (1, 2):
        if wait is SPINS:
            spins(history, FIRST + rank, f"GPU-{rank}", until)
        else:
            stands(history, FIRST + rank, BARRIER, wait, until)
    return history


def spins(history: History, pid: int, uuid: str, until: float) -> None:
    """A rank that asks its card again and again for a value, while a kernel there waits for the other ranks."""
    history.add(1.0, h200(uuid, pid - FIRST))
    history.add(1.0, GpuBinding(pid=pid, uuids=(uuid,), how="nvml", cuda=True))
    for at in looks(STOPPED, until):
        ran = 5.0 + at - STOPPED
        history.add(
            at,
            Thread(pid=pid, tid=pid, name="python", state="R", cpu_seconds=ran, run_seconds=ran, ran_ago_seconds=0.01),
        )
        history.add(
            at, Stack(pid=pid, tid=pid, frames=AT_THE_LOSS, samples=10, span_seconds=LOOK_SECONDS, owns_gil=False)
        )
        for reading in load("stalled_all_reduce", uuid):
            history.add(at, reading)


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_rank_that_computes_for_the_others_is_at_work_and_gets_five_times_the_hang_timeout(
    line: SourceLine | None,
) -> None:
    """Until then it is busy. Only the count of its steps is flat, so that even the hang is not sure."""
    history = computes(line, TOO_LONG + PATIENCE)

    soon = judged(history, STOPPED + 2 * PATIENCE)
    late = judged(history, TOO_LONG + 30.0)

    assert (soon.state, soon.cause) == ("busy", "waiting_on_work")
    assert max(one.decides_in_seconds for one in soon.findings) > PATIENCE
    assert (late.state, late.cause) == ("hung", "stalled_collective")
    assert late.confidence < CONFIDENT


@pytest.mark.parametrize(("trained", "wait"), [(True, FOR_EVER), (False, FOR_EVER), (False, HALF_AN_HOUR)])
def test_a_rank_in_a_loop_that_comes_to_its_end_is_at_work_until_that_has_lasted_too_long(
    trained: bool, wait: Wait
) -> None:
    """It is told where it works, and a loop over something endless is a hang as late as ever."""
    history = computes(COUNTS, TOO_LONG + PATIENCE, trained=trained, wait=wait)

    brief = judged(history, STOPPED + 15.0)
    soon = judged(history, STOPPED + 30.0)
    late = judged(history, TOO_LONG + 30.0)

    assert (brief.state, brief.cause) == ("busy", "waiting_on_work")
    assert (soon.state, soon.cause) == ("busy", "waiting_on_work")
    assert "is blocked on other ranks in a collective; process 200" in soon.summary
    assert "at evaluate (train.py:77)" in soon.summary
    assert late.state == "hung"
    assert late.confidence < CONFIDENT


def test_ranks_that_wait_for_their_cards_in_a_collective_are_told_for_whom() -> None:
    """NCCL: they spin at the value of the loss, and nobody sees a collective in their stacks."""
    until = STOPPED + PATIENCE
    history = computes(COUNTS, until, wait=SPINS)
    history.add(1.0, SourceLine(file=TRAIN, line=14, text="loss.item()", calls=("loss.item",)))

    verdict = judged(history, STOPPED + 0.5 * PATIENCE)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert "is blocked on other ranks in a collective; process 200" in verdict.summary


def test_a_loop_that_waits_for_a_condition_gets_no_more_than_the_patience() -> None:
    """It may turn for ever."""
    history = computes(WAITS_FOR_A_CONDITION, STOPPED + 2 * PATIENCE)

    verdict = judged(history, STOPPED + 1.2 * PATIENCE)

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")


def test_a_rank_that_writes_data_meanwhile_is_at_work() -> None:
    """Predictions as JSON: the thread itself writes them."""
    until = STOPPED + 3 * PATIENCE
    history = computes(None, until, bytes_per_second=4e6)

    verdict = judged(history, until)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert [culprit.rank for culprit in verdict.culprits] == [0]
    assert "; process 200" in verdict.summary


LOADER = TORCH + "utils/data/"
LOADS: tuple[Frames, ...] = tuple(
    (
        Frame("documents", TRAIN, line),
        Frame("_IterableDatasetFetcher.fetch", LOADER + "_utils/fetch.py", 35),
        Frame("_SingleProcessDataLoaderIter._next_data", LOADER + "dataloader.py", 801),
        MODULE,
    )
    for line in (42, 44, 45)
)


def loads(until: float, *besides: Frames) -> History:
    """The first of three ranks loads its own batches and reads all the while, as those do that filter every sample out."""
    history = job(3)
    runs(history, FIRST, (*LOADS, *besides), STOPPED, until, bytes_per_second=4e6)
    uses(history, FIRST, 0.95, 4e6, until)
    for rank in (1, 2):
        stands(history, FIRST + rank, BARRIER, FOR_EVER, until)
    return history


def test_a_rank_that_gives_itself_no_batch_while_the_others_wait_is_suspected_however_much_it_reads() -> None:
    """A batch may take long: five times the patience, and even then it is not sure."""
    history = loads(TOO_LONG + PATIENCE)

    brief = judged(history, STOPPED + 15.0)
    soon = judged(history, STOPPED + 30.0)
    late = judged(history, TOO_LONG + 30.0)

    assert brief.suspect is None or brief.suspect.state != "hung"
    suspected = next(one for one in soon.findings if one.state == "hung")
    assert soon.state == "busy"
    assert suspected.cause == "stalled_collective"
    assert suspected.decides_in_seconds > PATIENCE
    assert (late.state, late.cause) == ("hung", "stalled_collective")
    assert late.confidence < CONFIDENT
    assert [culprit.rank for culprit in late.culprits] == [0]
    assert late.culprits[0].frame is not None
    assert late.culprits[0].frame.startswith("documents")


def test_a_rank_that_was_seen_in_a_pass_of_its_model_has_had_its_batch() -> None:
    """What the others wait for is then another matter: they may be in another group."""
    until = TOO_LONG + PATIENCE

    verdict = judged(loads(until, *STEP), until)

    assert verdict.state != "hung"


LATE = TOO_LONG + PATIENCE
WORKER, DATA = 300, "/app/data.py"
TOKENISES: tuple[Frames, ...] = tuple(
    (Frame("write_out", TRAIN, line), Frame("main", TRAIN, 60), MODULE) for line in (71, 72)
)
AWAITS_A_BATCH: Frames = (
    Frame("poll", LIB + "multiprocessing/connection.py", 257),
    Frame("get", LIB + "multiprocessing/queues.py", 113),
    Frame("_try_get_data", LOADER + "dataloader.py", 1200),
    Frame("__next__", LOADER + "dataloader.py", 700),
    Frame("main", TRAIN, 90),
    MODULE,
)
SKIPS: tuple[Frames, ...] = tuple(
    (
        Frame("__iter__", DATA, line),
        Frame("fetch", LOADER + "_utils/fetch.py", 33),
        Frame("_worker_loop", LOADER + "_utils/worker.py", 349),
    )
    for line in (20, 21, 22)
)
FIVE_SECONDS = Wait(call="poll", number=7, kind="poll", remaining_seconds=5.0)


def source(file: str, line: int, loop: str) -> SourceLine:
    """A line in a loop of this kind."""
    return SourceLine(file=file, line=line, text="for one in them:", loops=(loop,))


def writes_out(ranks: int, trained: bool, bytes_per_second: float, loop: str = "for") -> History:
    """The first rank turns in a loop of its own, while the others wait for it."""
    history = job(ranks, trained)
    for line in (71, 72):
        history.add(1.0, source(TRAIN, line, loop))
    runs(history, FIRST, TOKENISES, STOPPED, LATE, bytes_per_second=bytes_per_second)
    uses(history, FIRST, 0.95, bytes_per_second, LATE)
    for rank in range(1, ranks):
        stands(history, FIRST + rank, BARRIER, FOR_EVER, LATE)
    return history


def skips(bytes_per_second: float, loop: str = "for", trained: bool = False) -> History:
    """A loader's worker that has made no batch of this epoch yet."""
    history = job(1, trained=trained)
    history.add(0.5, msgspec.structs.replace(process(WORKER, FIRST, "python train.py"), name="pt_data_worker"))
    for line in (20, 21, 22):
        history.add(1.0, source(DATA, line, loop))
    stands(history, FIRST, AWAITS_A_BATCH, FIVE_SECONDS, LATE)
    runs(history, WORKER, SKIPS, STOPPED, LATE, bytes_per_second=bytes_per_second, name="pt_data_worker")
    return history


@pytest.mark.parametrize("ranks", [1, 2])
def test_predictions_that_are_written_out_after_training_are_work_for_as_long_as_it_takes(ranks: int) -> None:
    """In a `for` loop at 5 MB/s, between two epochs."""
    history = writes_out(ranks, trained=True, bytes_per_second=5e6)

    for verdict in (judged(history, STOPPED + PATIENCE), judged(history, LATE)):
        assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
        assert "hung" not in {one.state for one in verdict.findings}
        assert (verdict.culprits[0].frame or "").startswith("write_out")


def test_a_worker_that_skips_through_a_stream_before_its_first_batch_is_at_work() -> None:
    """A run that goes on where it had stopped."""
    history = skips(bytes_per_second=2e7)

    for verdict in (judged(history, STOPPED + PATIENCE), judged(history, LATE)):
        assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
        assert verdict.culprits[0].worker_pid == WORKER


@pytest.mark.parametrize(
    ("history", "cause"),
    [
        (writes_out(1, trained=True, bytes_per_second=5e6, loop="while"), "endless_python"),
        (writes_out(1, trained=True, bytes_per_second=0.0), "endless_python"),
        (skips(bytes_per_second=2e7, loop="while", trained=True), "stuck_worker"),
        (skips(bytes_per_second=0.0, trained=True), "stuck_worker"),
    ],
)
def test_a_loop_that_waits_for_a_condition_or_moves_no_data_hangs_after_five_times_the_patience(
    history: History, cause: str
) -> None:
    """A log that is written in a loop without an end is no work."""
    verdict = judged(history, LATE)

    assert (verdict.state, verdict.cause) == ("hung", cause)


def test_preparation_in_memory_before_the_first_step_stays_preparation() -> None:
    """A vocabulary that takes six minutes: after five of them nothing has changed."""
    history = writes_out(1, trained=False, bytes_per_second=0.0)

    for verdict in (judged(history, STOPPED + PATIENCE), judged(history, LATE)):
        assert (verdict.state, verdict.cause) == ("busy", "starting")


ASKS: Frames = (Frame("begin", LIB + "http/client.py", 279), Frame("ask", TRAIN, 39), MODULE)
PARSES_SECONDS = 0.05  # of CPU time, between two answers
UNTIL = STOPPED + 400.0


def asking(answered_after: tuple[float, ...]) -> History:
    """The first of two ranks, in requests that are answered one after the other; the last one never is."""
    history = job(2)
    stands(history, FIRST + 1, BARRIER, FOR_EVER, UNTIL)
    begun = [STOPPED]
    for seconds in answered_after:
        begun.append(begun[-1] + seconds)
    for number, (since, until) in enumerate(zip(begun, [*begun[1:], UNTIL], strict=True)):
        ran = 5.0 + number * PARSES_SECONDS
        for at in looks(since, until):
            wait = Wait(call="poll", number=7, kind="poll", fd=9, remaining_seconds=1800.0 - (at - since))
            history.add(at, Thread(pid=FIRST, tid=FIRST, name="python", state="S", cpu_seconds=ran, run_seconds=ran,
                                   voluntary_switches=50 + number, ran_ago_seconds=at - since, wait=wait))  # fmt: skip
            history.add(at, Stack(pid=FIRST, tid=FIRST, frames=ASKS, samples=10, span_seconds=LOOK_SECONDS))
    return history


@pytest.mark.parametrize("answers", [1, 4, 7])
def test_a_rank_whose_requests_are_answered_after_a_while_is_not_stuck_however_long_the_others_wait(
    answers: int,
) -> None:
    """Of the others' wait no part is longer than that for one answer."""
    history = asking((35.0,) * answers)

    verdict = judged(history, STOPPED + answers * 35.0 + 30.0)

    assert verdict.state == "inconclusive"


@pytest.mark.parametrize(("each_seconds", "answers"), [(35.0, 1), (35.0, 4)])
def test_one_that_is_answered_no_more_is_stuck_after_the_patience_or_what_it_has_recovered_from(
    each_seconds: float, answers: int
) -> None:
    """Three times as long as an answer took before; it is told for how long it has stood, not for how long the others have waited."""
    history = asking((each_seconds,) * answers)
    since = STOPPED + answers * each_seconds

    before = judged(history, since + 80.0)
    verdict = judged(history, since + 120.0)

    assert before.state == "inconclusive"
    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert {one.rank for one in verdict.culprits} == {0}
    assert verdict.silent_seconds is not None
    assert verdict.silent_seconds <= history.at - since + LOOK_SECONDS


# A straggler is named together with what holds it back: its loader, its card, its CPUs, or its own line.


FIRES = RECORDINGS / "straggling_rank" / "fires"
COLLECTS = RECORDINGS / "garbage_collection" / "fires" / "collects_in_each_step"


def judged_late(name: str, records: tuple[Record, ...] | None = None) -> Verdict:
    """A recorded case, possibly with other readings."""
    recording = load_case(FIRES / name)
    at = expected_of(FIRES / name).at
    changed: Recording = recording if records is None else replace(recording, records=records)
    return diagnose(changed.until(at), at)


def test_its_own_line_is_named_where_nothing_else_holds_it_back() -> None:
    """It prepares its batches slowly."""
    verdict = judged_late("straggling_rank-nccl")

    assert (verdict.cause, verdict.owner) == ("straggling_rank", "user_code")
    assert verdict.culprits[0].rank == 1
    assert (verdict.culprits[0].frame or "").startswith("prepare_batch")


def test_its_loader_is_named_with_the_worker_and_its_line() -> None:
    """The rank only waits; its worker decodes."""
    verdict = judged_late("straggling_rank-loader")

    assert (verdict.cause, verdict.owner) == ("straggling_rank", "data")
    assert verdict.culprits[0].worker_pid is not None
    assert (verdict.culprits[0].frame or "").startswith("decode")


def test_a_card_that_is_held_down_by_heat_is_named() -> None:
    """Simulated: the card on which the late rank computes says so, and its clock is below that of the others."""
    verdict = judged_late("simulated-longer_batches_by_its_card-throttled_card")

    assert (verdict.cause, verdict.owner) == ("straggling_rank", "node")
    assert [(one.rank, one.gpu) for one in verdict.culprits] == [(1, 1)]
    assert "its card gpu 1 runs at 1185 MHz, the others at 1980" in verdict.summary


def test_a_hot_card_that_has_nothing_to_do_holds_nobody_back() -> None:
    """Simulated: the same of a rank that prepares its batches slowly, while its card idles."""
    verdict = judged_late("simulated-straggling_rank-nccl-throttled_card_that_idles")

    assert (verdict.cause, verdict.owner) == ("straggling_rank", "user_code")
    assert (verdict.culprits[0].frame or "").startswith("prepare_batch")
    assert "MHz" not in verdict.summary


@pytest.mark.parametrize("case", ["straggling_rank", "straggling_rank_sleep"])
def test_a_rank_that_is_kept_from_its_cpus_is_told_so(case: str) -> None:
    """Simulated: whenever it wants to run it waits as long again, and the others do not."""
    late = judged_late(case).culprits[0].pid

    def crowded(record: Record) -> Record:
        thread = record.reading
        if not isinstance(thread, Thread) or thread.run_seconds is None:
            return record
        delay = thread.run_seconds if thread.pid == late else 0.0
        return structs.replace(record, reading=structs.replace(thread, run_delay_seconds=delay))

    verdict = judged_late(case, tuple(map(crowded, load_case(FIRES / case).records)))

    assert (verdict.cause, verdict.owner) == ("straggling_rank", "node")
    assert "waits for a CPU 50%" in verdict.summary
    assert [one.pid for one in verdict.culprits] == [late]
    assert (verdict.culprits[0].frame or "").startswith(("prepare_batch", "fetch_features"))


REDUCES: Frames = (
    Frame("all_reduce", TORCH + "distributed/distributed_c10d.py", 2800),
    Frame("step", TRAIN, 14),
    MODULE,
)


@pytest.mark.parametrize(
    ("shares", "delays", "told"),
    [
        ((0.12, 0.15), (0.57, 0.83), False),  # measured: thirty others wanted the same two CPUs
        ((0.12, 0.15), (0.0, 0.0), True),
        ((0.05, 0.15), (0.57, 0.83), True),  # it has more to do
        ((0.05, 0.05), (0.57, 0.1), True),  # it sleeps between
    ],
)
def test_of_ranks_that_all_wait_for_a_cpu_chance_makes_one_the_last(
    shares: tuple[float, float], delays: tuple[float, float], told: bool
) -> None:
    """The second of two is never seen to wait for the first, which waits a third of the time."""
    history, until = job(2, trained=False), 60.0
    steps = (STEP[0], STEP[2])
    waits = ((*steps, REDUCES), steps)
    for rank, (turns, share, delay) in enumerate(zip(waits, shares, delays, strict=True)):
        runs(history, FIRST + rank, turns, 20.0, until, share=share, delay_share=delay)
    verdict = judged(history, until)

    assert (confidence_in(verdict, "straggling_rank") > 0) is told


@pytest.mark.parametrize("case", ["other_rank_hardly_seen", "other_rank_waits_for_it"])
def test_a_rank_that_starves_is_no_sure_verdict_while_the_other_may_wait_for_it(case: str) -> None:
    """Four samples of rank 0, or all of them in a collective: then the name of the fault is another, and more looks will tell."""
    verdict = judged_late(f"../../starved_by_transforms/fires/{case}")

    assert (verdict.cause, verdict.culprits[0].rank) == ("starved_by_transforms", 1)
    assert verdict.confidence < CONFIDENT


@pytest.mark.parametrize(
    ("its", "others", "late_one"),
    [
        ("big_all_reduce", "big_all_reduce", False),
        ("idle_context", "big_all_reduce", True),
        ("idle_context", "idle_context", True),  # the collective runs on the hosts: no card is held by it
    ],
)
def test_ranks_whose_cards_do_the_same_are_all_in_time(its: str, others: str, late_one: bool) -> None:
    """Where their hosts wait differs by chance; a card whose host is late is free, or has more to do."""
    recording, at = load_case(FIRES / "straggling_rank"), expected_of(FIRES / "straggling_rank").at
    history = History(recording.until(at).records, at)
    ranks = Case(history, recording.session, recording.events).ranks
    late = judged_late("straggling_rank").culprits[0].pid
    for number, rank in enumerate(ranks):
        uuid = f"GPU-{number}"
        for reading in (h200(uuid, number), bound(rank.pid, uuid)):
            history.add(at - 12.0, reading)
        under(history, its if rank.pid == late else others, at - 12.0, at, uuid)

    verdict = judge(Case(history, recording.session, recording.events))

    assert (confidence_in(verdict, "straggling_rank") > 0) is late_one


@pytest.mark.parametrize(("share", "late"), [(0.05, True), (0.2, False)])
def test_a_rank_that_has_just_begun_is_not_late(share: float, late: bool) -> None:
    """The others wait for it once, while it imports its modules: in a fifth of its samples, that is, and not in a twentieth."""
    recording = load_case(FIRES / "straggling_rank-masked")
    its = judged_late("straggling_rank-masked").culprits[0].pid
    imports = (Frame("_handle_fromlist", "<frozen importlib._bootstrap>", 1415), Frame("main", LATENESS_TRAIN, 3))
    stacks = [one.reading for one in recording.records if isinstance(one.reading, Stack)]
    left = share * sum(stack.samples for stack in stacks if (stack.pid, stack.tid) == (its, its))
    records = []
    for record in recording.records:
        stack = record.reading
        if isinstance(stack, Stack) and (stack.pid, stack.tid) == (its, its) and stack.samples <= left:
            left -= stack.samples
            record = structs.replace(record, reading=structs.replace(stack, frames=imports))
        records.append(record)

    assert (judged_late("straggling_rank-masked", tuple(records)).cause == "straggling_rank") is late


def as_rank(reading: Reading, rank: int) -> Reading:
    """The same of another process, which is this rank of two."""
    pid = getattr(reading, "pid", None)
    changed: dict[str, Any] = {} if pid is None else {"pid": pid + rank}
    if pid is not None and getattr(reading, "tid", None) == pid:
        changed["tid"] = pid + rank
    if isinstance(reading, Process):
        changed |= {"rank": rank, "local_rank": rank, "world_size": 2, "local_world_size": 2}
    return structs.replace(reading, **changed)


@pytest.mark.parametrize("largest", [0, 1])
def test_the_rank_with_most_objects_is_blamed_where_all_collect_all_the_time(largest: int) -> None:
    """The others have brief collections, and wait in every step for the one whose collections take long."""
    recording, at = load_case(COLLECTS), expected_of(COLLECTS).at
    both = [structs.replace(one, reading=as_rank(one.reading, rank)) for one in recording.records for rank in (0, 1)]
    pid = next(one.reading.pid for one in recording.records if isinstance(one.reading, Process))
    sizes = [
        ProcessUsage(
            pid=pid + rank,
            state="R",
            threads=1,
            cpu_seconds=1.0,
            major_faults=0,
            minor_faults=0,
            resident_bytes=(3 if rank == largest else 1) << 30,
        )
        for rank in (0, 1)
    ]
    both += [structs.replace(recording.records[-1], reading=one) for one in sizes]
    verdict = diagnose(replace(recording, records=tuple(both)).until(at), at)

    assert (verdict.state, verdict.cause) == ("slow", "garbage_collection")
    assert verdict.culprits[0].rank == largest


# Who collects experience from processes of its own is told which of them is late, and who steps in its own process is not.


CASES = RECORDINGS / "evaluating" / "fires"


@pytest.mark.parametrize(
    ("case", "late"), [("one_environment_is_late", True), ("environment_beside_one_that_draws", False)]
)
def test_the_environment_that_is_late_is_named_where_environments_are_processes(case: str, late: bool) -> None:
    """A child that draws pictures all the time is none of them."""
    assert ("it waits for process" in retold(CASES / case).summary) == late
