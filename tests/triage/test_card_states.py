"""What a card does, read from its units; and what a card without counters cannot say."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import blamed, case_text, cases, expected_of
from perfwatch.gauntlet.score import CONFIDENT
from perfwatch.recording.recording import Recording
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import (
    Frame,
    Gpu,
    GpuActivity,
    GpuBinding,
    GpuErrors,
    GpuEvent,
    GpuProcess,
    GpuSample,
    GpuSilence,
    KernelMessage,
    Process,
    ProcessEnded,
    Reading,
    SourceLine,
    Stack,
    Thread,
    Traceback,
)
from tests.cards import LOADS, UUID, bound, h200, history_until, load, under
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
from tests.training import BACKWARD, ENGINE, FORWARD, OPTIMIZER, PID, READS_LOSS, TRAIN, Training, level
from tests.triage.retold import retold

# What a card does is read from its units, not from its utilisation: seen through a thread that waits for it at ``loss.item()``.


STEPS = [FORWARD, BACKWARD, OPTIMIZER]
LOOK = GpuActivity(uuid=UUID, interval_seconds=0.2, graphics=1.0, sm_active=1.0, fp32=0.0, fp16=0.0, fp64=0.0)
Looks = Iterable[tuple[float, Reading]]


def reads_loss(history: History, seconds: float, binding: GpuBinding | None) -> Verdict:
    """The verdict on a process whose training thread spins at one line that asks its card for a value, for so long."""
    history.add(0.0, Process(pid=PID, start_ticks=1, parent_pid=1, name="python", command=("python", "train.py"),
                             python=True, torch_loaded=True))  # fmt: skip
    history.add(0.0, SourceLine(file=TRAIN, line=20, text="total += loss.item()", calls=("loss.item",)))
    if binding is not None:
        history.add(0.0, binding)
    for number in range(int(seconds / 0.5) + 1):
        at = history.at - seconds + 0.5 * number
        history.add(at, Thread(pid=PID, tid=PID, name="python", state="R", cpu_seconds=at, run_seconds=at,
                               voluntary_switches=0, read_calls=0, write_calls=0))  # fmt: skip
        history.add(at, Stack(pid=PID, tid=PID, frames=READS_LOSS, samples=5, span_seconds=0.4, owns_gil=False))
    return judge(Case(history, session(root_pids=(PID,), conditions={"patience_seconds": 60.0})))


def waits_for(looks: Looks, until: float) -> Verdict:
    """The verdict after a thread has waited all the while for a card that was read so."""
    history = History()
    history.add(0.0, h200())
    for at, reading in looks:
        history.add(at, reading)
    history.at = until
    return reads_loss(history, until, bound(PID))


def state(verdict: Verdict) -> str:
    """What the verdict says of the card: work, wait (for the host), spin, polls, idle or unknown."""
    if verdict.cause in ("gpu_bound", "memory_bound_gpu", "underfilled_gpu"):
        return "work"
    if verdict.cause == "synchronising":
        return "wait"
    suspect = verdict.suspect.cause if verdict.suspect is not None else None
    if "stuck_kernel" in (verdict.cause, suspect):
        return "idle" if "nothing to do" in verdict.summary else "spin"
    return "polls" if "kernel only polls" in verdict.summary else "unknown"


STATES = {
    "bf16_matmul": "work",
    "tf32_matmul": "work",
    "fp32_matmul": "work",
    "elementwise": "work",
    "tiny_kernels": "wait",
    "item_each_step": "wait",
    "pageable_copies": "idle",
    "one_spinning_kernel": "spin",
    "starved": "wait",
    "idle_context": "idle",
    "stalled_all_reduce": "spin",
    "all_reduce_over_sockets": "polls",
    "late_peer": "work",
    "big_all_reduce": "work",
}


@pytest.mark.parametrize("name", LOADS)
def test_every_measured_load_is_known_by_its_units(name: str) -> None:
    """Utilisation reads 100 % for half of them; twelve seconds of the first kernel that is seen prove no hang."""
    verdict = Training().goes_on(12, [READS_LOSS], load=name).verdict()

    assert state(verdict) == STATES[name]
    assert verdict.state != "hung"


@pytest.mark.parametrize(
    ("at", "uuid", "expected"),
    [(17.8, "GPU-1", "work"), (24.0, "GPU-0", "spin"), (24.0, "GPU-1", "idle")],
)
def test_a_recorded_hang_and_the_training_before_it(at: float, uuid: str, expected: str) -> None:
    """Two ranks in step, then one waits at 100 % utilisation for the other, whose card is idle."""
    assert state(reads_loss(history_until(at), 6.0, bound(PID, uuid))) == expected


BEFORE = "graphics 100%, tensor 21%, DRAM 37%, NVLink 17,343 MiB/s, 648 W earlier in this run"
NO_PAST = "data moves while a kernel is resident"


@pytest.mark.parametrize("at", [23.0, 24.0, 30.0])
def test_a_card_that_spins_is_compared_with_its_work_before(at: float) -> None:
    """The wait itself, from 18 s on, is no work: however long it lasts, the levels stay."""
    verdict = reads_loss(history_until(at), at - 18.0, bound(PID, "GPU-0"))

    assert state(verdict) == "spin"
    assert [one.expected for one in verdict.evidence if one.witness == "gpm"] == [BEFORE]


def spins_unmonitored(memory_known: bool = True, since: float = 0.0) -> Verdict:
    """The recorded hang on a card without performance monitoring, attached at a moment."""
    whole, history = history_until(30.0, Gpu, GpuSample), History(at=30.0)
    history.add(0.0, next(one.reading for one in whole.every(Gpu) if one.reading.uuid == "GPU-0"))
    for one in whole.series(GpuSample, "GPU-0"):
        if one.at >= since:
            reading = one.reading if memory_known else structs.replace(one.reading, memory_utilisation=None)
            history.add(one.at, reading)
    return reads_loss(history, 10.0, bound(PID, "GPU-0"))


@pytest.mark.parametrize("memory_known", [True, False])
def test_without_units_a_hang_is_known_by_what_the_run_drew_before(memory_known: bool) -> None:
    """126 W at 100 % is nothing for a run that drew 650 W; without a past a fifth of the power limit is only a guess."""
    known, guessed = (spins_unmonitored(memory_known, since) for since in (0.0, 20.0))

    assert state(known) == state(guessed) == "spin"
    assert [one.expected for one in known.evidence if one.witness == "nvml"] == ["648 W earlier in this run"]
    assert [one.expected for one in guessed.evidence if one.witness == "nvml"] == [NO_PAST]
    assert guessed.confidence <= known.confidence


def test_without_units_power_tells_work_from_a_spinning_kernel() -> None:
    """Utilisation reads 100 % for both."""
    work, spin = (
        Training(monitored=False, sample={"memory_utilisation": None}).goes_on(70, [READS_LOSS], load=name).verdict()
        for name in ("bf16_matmul", "one_spinning_kernel")
    )

    assert (state(work), state(spin)) == ("work", "spin")
    assert spin.state == "hung"


def test_a_card_that_is_no_longer_read_is_not_known() -> None:
    """Missing is not zero: the last reading says nothing about now."""
    history = History()
    under(history, "one_spinning_kernel", 0.0, 5.0)
    history.at = 12.0

    assert state(reads_loss(history, 12.0, bound(PID))) == "unknown"


def test_a_card_that_is_read_seldom_is_judged_by_fewer_and_longer_looks() -> None:
    """Eight cards on a slow driver: one comparison of each in three seconds."""
    seldom = GpuActivity(uuid=UUID, interval_seconds=3.0, graphics=1.0, dram=0.3, sm_active=0.9)

    assert state(waits_for([(3.0, seldom), (6.0, seldom)], 11.0)) == "work"


def test_one_look_at_a_card_is_not_enough() -> None:
    """Two are the least between which anything can be flat, three rule out chance."""
    assert state(waits_for([(11.0, one) for one in load("one_spinning_kernel")], 11.0)) == "unknown"


def spinning(seconds: float, **changes: object) -> list[tuple[float, Reading]]:
    """Looks at a kernel that spins, with these units changed."""
    sample, activity = load("one_spinning_kernel")
    changed = structs.replace(activity, **changes)
    return [(0.2 * number, one) for number in range(round(seconds / 0.2) + 1) for one in (sample, changed)]


@pytest.mark.parametrize("unit", ["tensor", "dram", "pcie_received_mib_per_second", "nvlink_received_mib_per_second"])
def test_a_kernel_that_moves_any_data_does_not_spin(unit: str) -> None:
    """A thousandth of the memory's bandwidth is five gigabytes a second."""
    moved = 40.0 if unit.endswith("second") else 0.01

    assert state(waits_for(spinning(12.0, **{unit: moved}), 12.0)) in ("work", "polls")


@pytest.mark.parametrize(
    ("units", "expected", "patient"),
    [
        ({"tensor": 0.0102, "integer": 0.0153, "dram": 0.0}, "spin", False),
        ({"tensor": 0.0102, "integer": 0.0153, "dram": 0.0, "fp32": 0.01}, "work", True),
        ({"tensor": 0.0102, "integer": 0.0153, "dram": 0.0004}, "work", True),
        ({"tensor": 0.0300, "integer": 0.0100, "dram": 0.0}, "work", True),
        ({"tensor": 0.0, "integer": 0.4, "dram": 0.0}, "spin", True),
        ({"tensor": 0.0, "fp32": 0.4, "dram": 0.0}, "spin", True),
    ],
)
def test_blocks_that_wait_for_each_other_are_told_from_those_that_compute(
    units: dict[str, float], expected: str, patient: bool
) -> None:
    """A barrier of the whole card asks atomically, which counts as tensor work; an iteration in registers may converge yet."""
    worked = [(0.2 * number, structs.replace(LOOK, graphics=0.97, dram=0.3)) for number in range(30)]
    looks = [(6.0 + 0.2 * number, structs.replace(LOOK, **units)) for number in range(61)]
    verdict = waits_for([*worked, *looks], 18.0)

    assert state(verdict) == expected
    assert (verdict.state == "hung") is not patient


@pytest.mark.parametrize(
    ("mebibytes", "dram", "expected"),
    [
        (250, 0.0004, "polls"),
        (1530, 0.0, "polls"),
        (3340, 0.0, "polls"),
        (1530, 0.0003, "work"),
        (1530, None, "work"),
        (20_000, 0.0, "work"),
    ],
)
def test_a_kernel_that_only_polls_stores_nothing_of_what_it_reads(
    mebibytes: int, dram: float | None, expected: str
) -> None:
    """One that takes data in fills the card's memory, and one that works on the host's reads as fast as the link."""
    look = structs.replace(LOOK, sm_active=0.12, tensor=0.0, dram=dram, pcie_received_mib_per_second=mebibytes)

    assert state(waits_for([(0.2 * number, look) for number in range(61)], 12.0)) == expected


def resident(since: float, until: float, graphics: float = 1.0, dram: float = 0.0) -> list[tuple[float, Reading]]:
    """Ten looks a second at a kernel that is resident for so much of the time."""
    look = GpuActivity(uuid=UUID, interval_seconds=0.1, graphics=graphics, dram=dram, tensor=0.0)
    return [(number / 10, look) for number in range(round(since * 10), round(until * 10))]


def test_work_in_between_ends_a_spin() -> None:
    """A kernel that waits in each step is not one that never ends."""
    looks = [*spinning(4.0), (4.2, load("bf16_matmul")[1]), *((4.4 + at, one) for at, one in spinning(9.6))]
    verdict = waits_for(looks, 14.0)

    assert state(verdict) == "spin"
    assert verdict.silent_seconds == pytest.approx(9.8, abs=0.3)


def test_the_recorded_hang_is_counted_from_the_last_work() -> None:
    """Rank 0 waits from 18 s on, whenever the thread was first seen there."""
    verdict = reads_loss(history_until(24.0), 10.0, bound(PID, "GPU-0"))

    assert verdict.silent_seconds == pytest.approx(6.0, abs=0.5)


def test_kernels_of_some_seconds_are_no_hang_while_they_end() -> None:
    """Four seconds each, and a quarter of a millisecond without one between two; the last one lasts."""
    looks = [
        (at, structs.replace(one, graphics=0.9977) if at < 15.0 and number % 40 == 39 else one)
        for number, (at, one) in enumerate(resident(0.0, 40.0))
    ]
    soon, late = (waits_for([one for one in looks if one[0] <= until], until) for until in (16.0, 39.0))

    assert "kernel does not end (gpu 0: long kernels" in soon.summary
    assert soon.suspect is None
    assert (late.state, late.cause) == ("hung", "stuck_kernel")
    assert late.silent_seconds == pytest.approx(27.0, abs=0.3)


@pytest.mark.parametrize("before", [0.0, 0.4])
def test_a_card_that_had_nothing_to_do_ran_no_long_kernel(before: float) -> None:
    """One look reaches back over 4.5 s in which no kernel ran: to when the card was opened, or to a look at work before."""
    idle = GpuActivity(uuid=UUID, interval_seconds=4.5, graphics=0.0, dram=0.0, tensor=0.0)
    began = resident(0.1, before + 0.1, graphics=0.97, dram=0.3)
    looks = [*began, (before + 4.5, idle), *resident(5.0, 10.0, graphics=0.97, dram=0.3), *resident(10.0, 20.0)]
    verdict = waits_for(looks, 19.9)

    assert (verdict.state, verdict.cause) == ("hung", "stuck_kernel")
    assert verdict.silent_seconds == pytest.approx(10.0, abs=0.2)


def test_a_gap_between_two_looks_is_no_long_kernel() -> None:
    """What happened meanwhile is not known."""
    verdict = waits_for([*resident(0.1, 0.3), *resident(30.0, 30.3)], 31.0)

    assert verdict.silent_seconds == pytest.approx(1.1, abs=0.1)
    assert verdict.state == "inconclusive"


@pytest.mark.parametrize(
    ("neighbours", "silent_seconds"), [((), None), ((4.4,), 3.8), ((4.4, 6.4), 10.0), ((4.4, 6.4, 7.0, 8.0), None)]
)
def test_a_neighbour_that_begins_to_use_its_own_card_ends_no_kernel_here(
    neighbours: tuple[float, ...], silent_seconds: float | None
) -> None:
    """Its start halts every card of the host for a moment; where many come and go, every gap at 4 and 6 s counts."""
    looks = [
        (at, structs.replace(one, graphics=0.996) if isinstance(one, GpuActivity) and at in (4.0, 6.0) else one)
        for at, one in ((round(at, 1), one) for at, one in spinning(9.8))
    ]
    others = [(at, GpuProcess(pid=pid, local_pid=pid, uuid="GPU-2")) for pid, at in enumerate(neighbours, 900)]
    verdict = waits_for([*looks, *others], 9.8)

    assert (state(verdict) == "spin") is (silent_seconds is not None)
    assert silent_seconds is None or verdict.silent_seconds == pytest.approx(silent_seconds, abs=0.2)


def test_a_torn_look_ends_no_kernel() -> None:
    """All units zero, and no word on the memory."""
    torn = structs.replace(load("idle_context")[1], dram=None)
    looks = [(at, torn if round(at, 1) == 4.0 and isinstance(one, GpuActivity) else one) for at, one in spinning(10.0)]
    verdict = waits_for(looks, 10.0)

    assert state(verdict) == "spin"
    assert verdict.silent_seconds == pytest.approx(10.0, abs=0.3)


def test_the_cards_of_a_rank_are_those_that_it_is_bound_to() -> None:
    """Card 0 spins, card 1 idles; without a binding every card is judged, which is less sure and is reported."""
    other, own, unknown = (
        reads_loss(history_until(25.0), 7.0, binding) for binding in (bound(PID, "GPU-1"), bound(PID, "GPU-0"), None)
    )

    assert [state(one) for one in (other, own, unknown)] == ["idle", "spin", "spin"]
    assert "gpu 1" in other.summary
    assert unknown.confidence < own.confidence
    assert [one.observed for one in unknown.evidence if one.witness == "binding"] == ["device"]


def test_a_process_without_cuda_has_no_card() -> None:
    """A computation on the CPU, on a machine with cards."""
    verdict = reads_loss(history_until(25.0), 7.0, GpuBinding(pid=PID, cuda=False))

    assert (verdict.state, verdict.cause) == ("busy", "computing_on_host")


@pytest.mark.parametrize(("run_seconds", "works"), [(0.00014, False), (0.002, True), (None, True)])
def test_the_engine_thread_of_a_card_that_was_never_used_tells_nothing(run_seconds: float | None, works: bool) -> None:
    """torch with CUDA makes it also for a training on the CPU; one that has worked remembers since when nothing came."""
    job = Training()
    job.add(Thread(pid=PID, tid=ENGINE, name="pt_autograd_0", state="S", cpu_seconds=0.0, run_seconds=run_seconds,
                   voluntary_switches=1, ran_ago_seconds=300.0))  # fmt: skip
    verdict = job.goes_on(11, [READS_LOSS], load="one_spinning_kernel").verdict()

    assert ((verdict.silent_seconds or 0.0) >= 300.0) is works
    assert ("engine" in {one.witness for one in verdict.evidence}) is works


BUSY = {"utilisation": 1.0, "memory_utilisation": 0.4, "power_watts": 691.0}
IDLE = {"utilisation": 0.0, "memory_utilisation": 0.0, "power_watts": 130.0}


def zeros(seconds: float, stacks: Sequence[tuple[Frame, ...]], before: float = 0.0, **sample: object) -> Verdict:
    """So many seconds in which the units read zero and every sample says something, perhaps after some that were in order."""
    said: dict[str, object] = {"utilisation": 1.0}
    job = Training(sample=said)
    if before:
        job.goes_on(before, STEPS, load="bf16_matmul", samples=10)
    said.update(sample)
    return job.goes_on(seconds, stacks, load="idle_context", samples=10).verdict()


@pytest.mark.parametrize("before", [0.0, 12.0])
def test_a_training_whose_units_read_zero_is_judged_by_what_the_driver_tells(before: float) -> None:
    """At 100 % and 691 W; the model is not on the CPU, less is sure, and what is missing is reported."""
    verdict = zeros(20, STEPS, before, **BUSY)

    assert verdict.cause == "gpu_bound"
    assert level(verdict.confidence) != "certain"
    assert any("the units of gpu 0 tell that no kernel ran" in one.reason for one in verdict.missing)


@pytest.mark.parametrize("before", [0.0, 12.0])
def test_a_wait_for_a_card_that_works_is_no_idle_stream(before: float) -> None:
    """Eighty seconds at .item(), on a card of which only the units say that it has nothing to do."""
    assert zeros(80, [READS_LOSS], before, **BUSY).state != "hung"


@pytest.mark.parametrize("sample", [IDLE, {**BUSY, "power_watts": 130.0}, {**BUSY, "utilisation": 0.2}])
def test_zeros_that_utilisation_or_power_bears_out_are_believed(sample: Mapping[str, float]) -> None:
    """A card that idles, one that is reported as used and draws nothing, one that was used now and then."""
    verdict = zeros(12, [READS_LOSS], **sample)

    assert state(verdict) == "idle"
    assert not any("the units of" in one.reason for one in verdict.missing)


def test_zeros_beside_a_look_that_saw_a_kernel_are_believed() -> None:
    """A card that works and idles in turns was sampled while it idled."""
    looks: list[tuple[float, Reading]] = []
    for second in range(11):
        looks.append((second + 0.3, GpuSample(uuid=UUID, utilisation=1.0, power_watts=690.0)))
        looks.append((float(second), load("bf16_matmul" if second == 4 else "idle_context")[1]))
    verdict = waits_for(looks[:-2], 10.0)

    assert state(verdict) == "idle"
    assert verdict.silent_seconds == pytest.approx(6.0, abs=0.5)


EXPOSED = RECORDINGS / "exposed_communication" / "fires" / "through_host_memory"
judged = partial(retold, EXPOSED)


@pytest.mark.parametrize(
    "changes",
    [
        {"pcie_sent_mib_per_second": 30.0},  # batches come, nothing goes
        {"nvlink_received_mib_per_second": 5000.0, "nvlink_sent_mib_per_second": 5000.0},  # the ranks have another way
        {"tensor": 0.3},
        {"graphics": 0.5},  # copies need no kernel
    ],
)
def test_only_what_goes_to_and_fro_beside_kernels_that_hardly_compute_is_communication(
    changes: dict[str, float | None],
) -> None:
    """Recorded on two H100 with NCCL_P2P_DISABLE=1; each of the marks is needed."""

    def changed(reading: Reading) -> Reading:
        return structs.replace(reading, **changes) if isinstance(reading, GpuActivity) else reading

    assert judged().cause == "exposed_communication"
    assert judged(changed).cause != "exposed_communication"


def test_links_that_are_up_and_not_used_are_reported() -> None:
    """With what to ask NCCL."""
    verdict = judged()

    assert "nothing over NVLink (18 links are up)" in verdict.summary
    assert "NCCL_P2P_DISABLE" in verdict.next[0]


def test_communication_is_less_sure_where_the_hosts_do_not_wait() -> None:
    """The cards alone tell that much goes to and fro, and not for whom."""
    stacks = [one.reading for one in load_case(EXPOSED).records if isinstance(one.reading, Stack)]
    launches = next(one.frames for one in stacks if any("linear.py" in frame.file for frame in one.frames))

    def elsewhere(reading: Reading) -> Reading:
        waits = isinstance(reading, Stack) and any("_engine_run_backward" in one.function for one in reading.frames)
        return structs.replace(reading, frames=launches) if waits else reading

    verdict = judged(elsewhere)

    assert verdict.cause == "exposed_communication", verdict.summary
    assert (level(verdict.confidence), level(judged().confidence)) == ("high", "certain")


@pytest.mark.parametrize(
    ("bursts", "seconds", "alone"),
    [
        ((), 20, True),
        ((2.0,), 20, True),  # once may have been the end of a phase
        ((2.0, 7.0, 12.0), 16, False),
        ((2.0, 4.0, 6.0), 30, True),  # it came back, and does no more
    ],
)
def test_an_idle_card_that_is_given_work_again_and_again_is_trained_on(
    bursts: tuple[float, ...], seconds: int, alone: bool
) -> None:
    """A tenth of a second of work each, between pauses of seconds; else the model is asked for on the CPU."""
    job = Training()
    for tenth in range(seconds * 10 + 1):
        for reading in load("tiny_kernels" if tenth / 10 in bursts else "idle_context"):
            job.history.add(tenth / 10, reading)
    verdict = job.goes_on(seconds, [FORWARD, BACKWARD, OPTIMIZER]).verdict()

    assert ("gpu 0, which it holds, is idle" in verdict.summary) is alone


# Cards older than Hopper have no performance monitoring: every verdict says so, and none is surer for it.


WITH_A_CARD = [
    str(case.relative_to(RECORDINGS))
    for case in cases(RECORDINGS)
    if case.parent.name == "fires" and b'"type":"Gpu"' in case_text(case)
]


def older(recording: Recording) -> Recording:
    """The same, as a card without performance monitoring would have shown it."""
    kept = []
    for record in recording.records:
        if isinstance(record.reading, Gpu):
            kept.append(structs.replace(record, reading=structs.replace(record.reading, gpm=False)))
        elif not isinstance(record.reading, GpuActivity):
            kept.append(record)
    return replace(recording, records=tuple(kept))


@pytest.mark.parametrize("case", WITH_A_CARD)
def test_a_verdict_about_an_older_card_says_what_is_not_seen(case: str) -> None:
    """The same cause at most as surely; or, of many ranks, the same culprit under its own cause; or nothing with confidence."""
    recording, at = load_case(RECORDINGS / case), expected_of(RECORDINGS / case).at
    seen, unseen = diagnose(recording, at), diagnose(older(recording), at)

    assert unseen.state == "gone" or "gpm" in {
        one.witness for one in unseen.missing
    }  # of an ended job no card is watched
    if unseen.cause == seen.cause:
        assert unseen.confidence <= seen.confidence
    else:
        assert unseen.confidence < CONFIDENT or (unseen.state, blamed(unseen)) == (seen.state, blamed(seen))


# A card that fails under a job: what the driver announced explains the end, and a driver that does not answer is named.


OTHER = "GPU-1"
BROKEN = [
    GpuEvent(uuid=OTHER, xid=79),
    KernelMessage(kind="xid", text="NVRM: Xid (PCI:0000:1b:00): 79, GPU lost.", logged_ago_seconds=0.0),
    Gpu(uuid=OTHER, index=1, name="NVIDIA H200", pci_bus="00000000:1B:00.0", lost=True),
    GpuErrors(uuid=OTHER, uncorrected=3),
]


def training(**sample: object) -> Training:
    """Twelve seconds of one that fills its card."""
    return Training(sample=sample).goes_on(12, STEPS, load="bf16_matmul", samples=10)


def ended(job: Training, code: int = 1) -> Training:
    """The process is gone."""
    job.add(ProcessEnded(pid=PID, start_ticks=1, exit_code=code))
    return job


@pytest.mark.parametrize(
    ("xid", "cause"),
    [
        (79, "gpu_fault"),
        (48, "gpu_fault"),
        (31, "gpu_fault"),
        (43, "crashed"),  # an assertion in the program's own kernel
        (63, "crashed"),  # corrected
    ],
)
def test_what_the_driver_announced_explains_the_end(xid: int, cause: str) -> None:
    """Errors that were corrected, or that follow from any end, explain nothing."""
    job = training()
    job.add(GpuEvent(uuid=UUID, xid=xid))

    assert ended(job).verdict().cause == cause


def in_the_log(ago_seconds: float) -> KernelMessage:
    """The card of the job has fallen off the bus, as the kernel's log says it."""
    text = "NVRM: Xid (PCI:0000:00:06): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    return KernelMessage(kind="xid", text=text, logged_ago_seconds=ago_seconds)


def test_an_xid_from_the_kernel_log_counts_only_when_it_was_logged_while_we_watched() -> None:
    """Last week's error has not ended this job."""
    fresh, stale = training(), training()
    fresh.add(in_the_log(1.0))
    stale.add(in_the_log(600_000.0))

    assert ended(fresh).verdict().cause == "gpu_fault"
    assert ended(stale).verdict().cause == "crashed"


@pytest.mark.parametrize("broken", BROKEN, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize(("uuid", "cause"), [(UUID, "crashed"), (OTHER, "gpu_fault")])
def test_a_card_that_the_job_does_not_use_has_not_ended_it(broken: Reading, uuid: str, cause: str) -> None:
    """The node has eight, and somebody else is on another one."""
    job = Training(binding=bound(PID, uuid))
    job.add(msgspec.structs.replace(h200(), pci_bus="00000000:00:06.0"))
    job.add(
        Gpu(uuid=OTHER, index=1, name="NVIDIA H200", pci_bus="00000000:1B:00.0"), GpuErrors(uuid=OTHER, uncorrected=0)
    )
    job.goes_on(12, STEPS, load="bf16_matmul")
    job.add(broken)

    assert ended(job).verdict().cause == cause


@pytest.mark.parametrize(
    ("xid", "seconds", "cause"),
    [(31, 30, "gpu_fault"), (31, 90, "crashed"), (79, 700, "gpu_fault"), (79, 1000, "crashed")],
)
def test_an_error_that_the_job_has_outlived_has_not_ended_it(xid: int, seconds: float, cause: str) -> None:
    """A program's own is raised within a step; those who wait for a broken card give up after NCCL's timeout."""
    job = training()
    job.add(GpuEvent(uuid=UUID, xid=xid))
    job.history.at += seconds

    assert ended(job).verdict().cause == cause


def test_a_job_that_ended_with_0_had_no_broken_card() -> None:
    """Whatever the driver announced."""
    job = training()
    job.add(GpuEvent(uuid=UUID, xid=31))

    assert ended(job, code=0).verdict().cause == "finished"


@pytest.mark.parametrize(("holder", "cause"), [(4711, "crashed"), (PID, "gpu_fault")])
def test_a_fault_of_somebody_elses_kernel_on_the_same_card_has_not_ended_it(holder: int, cause: str) -> None:
    """The kernel's log names the process, as the host counts; NVML's event does not."""
    job = training()
    text = "NVRM: Xid (PCI:0000:00:06): 31, pid=90001, name=python"
    job.add(msgspec.structs.replace(h200(), pci_bus="00000000:00:06.0"))
    job.add(GpuProcess(uuid=UUID, pid=90_001, local_pid=holder), GpuEvent(uuid=UUID, xid=31))
    job.add(KernelMessage(kind="xid", text=text, logged_ago_seconds=0.0, pid=90_001))

    assert ended(job).verdict().cause == cause


def test_an_exception_that_has_nothing_to_do_with_the_card_is_a_crash() -> None:
    """An illegal access of some other process was announced as well."""
    job = training()
    job.add(GpuEvent(uuid=UUID, xid=31), Traceback(pid=PID, exception="KeyError", text="KeyError: 'label'"))

    assert ended(job).verdict().cause == "crashed"


def test_the_memory_of_the_device_ran_out() -> None:
    """What was asked for, and how full the card was."""
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 279.60 GiB. GPU 0 has a total capacity of 139.80 GiB"
    job = training(memory_used_bytes=100 * 2**30)
    job.add(Traceback(pid=PID, exception="OutOfMemoryError", text=words))
    verdict = ended(job).verdict()

    assert verdict.cause == "out_of_memory"
    assert "279.60 GiB" in verdict.summary
    assert "100.0 GiB of 140.4" in verdict.summary


def silent(waited: float, **facts: object) -> Verdict:
    """A training that stands at one line while a call of ours into the driver has not returned."""
    job = Training().goes_on(6, STEPS, load="bf16_matmul").goes_on(20, [READS_LOSS])
    job.add(GpuSilence(call="sample", uuid=UUID, waited_seconds=waited, **facts))  # type: ignore[arg-type]
    return job.verdict()


def test_a_driver_that_does_not_answer_is_named() -> None:
    """Our own call waits, and the ranks stand still."""
    verdict = silent(15.0, state="D")

    assert (verdict.state, verdict.cause) == ("hung", "driver_unresponsive")


@pytest.mark.parametrize(("error", "witness"), [(GpuEvent(uuid=UUID, xid=79), "nvml"), (in_the_log(1.0), "kernel_log")])
def test_an_error_of_the_hardware_makes_a_silent_driver_certain(error: Reading, witness: str) -> None:
    """Xid 79 beside it, as the driver announces it or as the kernel's log has it; the line stands in the evidence."""
    job = Training().goes_on(6, STEPS, load="bf16_matmul").goes_on(20, [READS_LOSS])
    job.add(GpuSilence(call="sample", uuid=UUID, waited_seconds=15.0), error)
    verdict = job.verdict()

    assert verdict.cause == "driver_unresponsive"
    assert verdict.confidence > silent(15.0).confidence
    assert (witness, "Xid 79 (the card has fallen off the bus)") in [(e.witness, e.observed) for e in verdict.evidence]


def test_an_old_line_in_the_kernels_log_makes_nothing_certain() -> None:
    """That was before this job."""
    job = Training().goes_on(6, STEPS, load="bf16_matmul").goes_on(20, [READS_LOSS])
    job.add(GpuSilence(call="sample", uuid=UUID, waited_seconds=15.0), in_the_log(600_000.0))

    assert job.verdict().confidence == silent(15.0).confidence


def stands_beside(*facts: Reading) -> Verdict:
    """The same training, and what the driver says of some card."""
    job = Training().goes_on(6, STEPS, load="bf16_matmul").goes_on(8, [READS_LOSS])
    job.add(*facts)
    return job.goes_on(12, [READS_LOSS]).verdict()


def lost(uuid: str) -> tuple[Reading, ...]:
    """A card that has fallen off the bus, by the driver and by the kernel's log."""
    return (msgspec.structs.replace(h200(uuid, 7), lost=True), GpuEvent(uuid=uuid, xid=79))


def test_a_card_that_the_job_stands_on_and_that_is_lost_is_named_with_the_error() -> None:
    """No call of ours need be silent for that."""
    verdict = stands_beside(*lost(UUID))

    assert (verdict.state, verdict.cause) == ("hung", "driver_unresponsive")
    assert "is lost" in verdict.summary
    assert "Xid 79" in verdict.summary


def test_a_slice_is_lost_with_its_card() -> None:
    """The driver speaks of the whole; the job is bound to a part of it."""
    job = Training(binding=bound(PID, "MIG-1")).goes_on(14, [READS_LOSS])
    job.add(msgspec.structs.replace(h200("MIG-1", 0), parent_uuid=UUID), *lost(UUID))
    verdict = job.goes_on(12, [READS_LOSS]).verdict()

    assert (verdict.state, verdict.cause) == ("hung", "driver_unresponsive")


@pytest.mark.parametrize("facts", [lost(OTHER), (GpuSilence(call="sample", uuid=OTHER, waited_seconds=30.0),)])
def test_what_the_driver_says_of_a_card_of_others_hangs_nobody(facts: tuple[Reading, ...]) -> None:
    """The job uses another one, and stands still for a reason of its own."""
    assert stands_beside(*facts).cause != "driver_unresponsive"


def test_a_driver_that_is_merely_slow_is_not_accused() -> None:
    """Loading it takes a second or two."""
    assert silent(1.5).cause != "driver_unresponsive"


def test_a_driver_that_answers_again_is_not_accused() -> None:
    """A sample came after the silence."""
    job = Training().goes_on(6, STEPS, load="bf16_matmul").goes_on(20, [READS_LOSS])
    job.history.add(25.0, GpuSilence(call="sample", uuid=UUID, waited_seconds=15.0))
    job.add(GpuSample(uuid=UUID, utilisation=1.0))

    assert job.verdict().cause != "driver_unresponsive"


def test_a_job_that_goes_on_does_not_need_the_answer() -> None:
    """The driver serves it, whatever our own question waits for."""
    job = Training().goes_on(12, STEPS).steps(100, *[0.5] * 20)
    job.add(GpuSilence(call="sample", uuid=UUID, waited_seconds=30.0))

    assert job.verdict().cause != "driver_unresponsive"
