"""What holds a GPU job back, by the card's units, its host, its neighbours and its losses; and only where all of them agree."""

from collections.abc import Sequence

import msgspec
import pytest

from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import (
    Frame,
    Gpu,
    GpuActivity,
    GpuBinding,
    GpuProcess,
    GpuSilence,
    Process,
    Reading,
    SourceLine,
    Stack,
    Thread,
)
from tests.cards import UUID, h200, under
from tests.recorded import RECORDINGS, load_case
from tests.training import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    PID,
    READS_LOSS,
    TORCH,
    TRAIN,
    Training,
    confidence_in,
    level,
    level_in,
)

STEPS = [FORWARD, BACKWARD, OPTIMIZER]
OTHER = "GPU-other"
COPIES = (Frame("train", TRAIN, 30),)
EMPTIES = (Frame("empty_cache", f"{TORCH}/cuda/memory.py", 224), Frame("train", TRAIN, 31))
EAGER = (
    Frame(
        "eager_attention_forward", "/home/user/venv/lib/python3.12/site-packages/transformers/models/x/modeling_x.py", 9
    ),
    *FORWARD,
)
PRODUCT = (Frame("train", TRAIN, 50),)
FORCES = (Frame("train", TRAIN, 51),)


def under_load(load: str, stacks: Sequence[tuple[Frame, ...]], **sample: object) -> Training:
    """Twelve seconds of a training under a load."""
    job = Training(sample=sample)
    job.add(SourceLine(file=TRAIN, line=30, text="    batch = batch.to(device)", calls=("batch.to",)))
    return job.goes_on(12, stacks, load=load, samples=10)


@pytest.mark.parametrize(
    ("load", "stacks", "cause"),
    [
        ("bf16_matmul", STEPS, "gpu_bound"),
        ("tf32_matmul", STEPS, "gpu_bound"),
        ("fp32_matmul", STEPS, "wrong_precision"),
        ("elementwise", STEPS, "memory_bound_gpu"),
        ("tiny_kernels", STEPS, "host_bound_python"),
        ("item_each_step", [*STEPS, READS_LOSS], "synchronising"),
        ("item_each_step", [*STEPS, READS_LOSS, EMPTIES], "allocator_thrash"),
        ("pageable_copies", [*STEPS, COPIES, COPIES], "copy_bound"),
        ("late_peer", STEPS, "underfilled_gpu"),  # of a job with one rank: there is no peer
        ("elementwise", [*STEPS, EAGER], "slow_attention_fallback"),
    ],
)
def test_each_measured_load_has_its_name(load: str, stacks: list[tuple[Frame, ...]], cause: str) -> None:
    """The table of measured loads, beside a host that does what goes with it."""
    assert under_load(load, stacks).verdict().cause == cause


@pytest.mark.parametrize("load", ["bf16_matmul", "elementwise", "fp32_matmul"])
def test_a_wait_for_a_card_that_is_busy_is_no_synchronising(load: str) -> None:
    """Half of the samples at .item(), and not a gap on the card."""
    assert under_load(load, [*STEPS, READS_LOSS, READS_LOSS, READS_LOSS]).verdict().cause != "synchronising"


def test_an_unmonitored_card_gets_a_name_with_less_confidence() -> None:
    """Utilisation alone: 36 % of the time with a kernel."""
    seen = under_load("tiny_kernels", STEPS).verdict()
    blind = Training(monitored=False).goes_on(12, STEPS, load="tiny_kernels", samples=10).verdict()

    assert seen.cause == blind.cause == "host_bound_python"
    assert blind.confidence < seen.confidence


@pytest.mark.parametrize(
    ("reasons", "clock", "cause"),
    [
        (0x40, 1200, "throttled_gpu"),
        (0x80, 900, "throttled_gpu"),
        (0x04, 1470, "gpu_bound"),  # the power cap alone: normal for a card that runs flat out
        (0x40, 1960, "gpu_bound"),  # a reason without an effect
        (0x00, 1470, "gpu_bound"),
    ],
)
def test_heat_and_a_cut_of_power_are_named_and_the_power_cap_is_not(reasons: int, clock: int, cause: str) -> None:
    """Against the card's own maximum, where nothing else is known."""
    assert under_load("bf16_matmul", STEPS, reasons=reasons, sm_clock_mhz=clock).verdict().cause == cause


@pytest.mark.parametrize(
    ("load", "generation", "width", "cause"),
    [
        ("pageable_copies", 3, 8, "degraded_link"),
        ("pageable_copies", 5, 16, "copy_bound"),
        ("bf16_matmul", 1, 16, "gpu_bound"),  # noted, but nothing of note crosses it
    ],
)
def test_a_link_below_its_maximum_is_named_where_the_job_uses_it(
    load: str, generation: int, width: int, cause: str
) -> None:
    """Card and slot could do generation 5 with 16 lanes."""
    job = under_load(load, [*STEPS, COPIES, COPIES], pcie_generation=generation, pcie_width=width)

    assert job.verdict().cause == cause


def test_bytes_that_nobody_counted_are_not_taken_for_none() -> None:
    """A card without units and without a counter: copies may be what it waits for, and a narrow link may be in use."""
    job = Training(monitored=False, sample={"utilisation": 0.2, "pcie_generation": 3, "pcie_width": 8})
    job.add(SourceLine(file=TRAIN, line=30, text="    batch = batch.to(device)", calls=("batch.to",)))
    verdict = job.goes_on(12, [*STEPS, COPIES, COPIES], load="pageable_copies", samples=10).verdict()
    (link,) = [one for one in verdict.findings if one.cause == "degraded_link"]

    assert "pcie" in {one.witness for one in verdict.missing}
    assert verdict.confidence <= 0.7
    assert [one.observed for one in link.evidence if one.claim == "uses the link"] == ["not measured by this card"]


@pytest.mark.parametrize(("share", "cause"), [(0.4, "shared_gpu"), (0.0, "gpu_bound")])
def test_a_neighbour_is_named_when_it_computes(share: float, cause: str) -> None:
    """A process that holds memory takes no time."""
    job = Training()
    for second in range(12):
        job.history.add(
            float(second), GpuProcess(uuid=UUID, pid=4711, local_pid=4711, sm_utilisation=share, memory_bytes=2**30)
        )
        job.history.add(float(second), GpuProcess(uuid=UUID, pid=PID, local_pid=PID, sm_utilisation=0.5))
    verdict = job.goes_on(12, [*STEPS, READS_LOSS], load="bf16_matmul", samples=10).steps(900, *[0.2] * 60).verdict()

    assert verdict.cause == cause
    assert cause != "shared_gpu" or "pid 4711" in verdict.summary


def test_in_a_container_the_jobs_own_process_is_not_taken_for_a_stranger() -> None:
    """The driver's pids mean nothing there: one process on the card, one process of the job that uses it."""
    job = Training()
    for second in range(12):
        job.history.add(float(second), GpuProcess(uuid=UUID, pid=90_001, sm_utilisation=0.9, memory_bytes=2**33))

    assert job.goes_on(12, STEPS, load="bf16_matmul", samples=10).verdict().cause == "gpu_bound"


def test_no_gpu_rule_speaks_of_a_job_without_a_gpu() -> None:
    """The same training on the CPU."""
    verdict = Training(card=False).goes_on(12, STEPS, samples=10).steps(100, *[0.1] * 60).verdict()

    assert (verdict.state, verdict.cause) == ("healthy", "cpu_training")
    assert verdict.efficiency is None


def test_a_card_that_was_given_work_a_moment_ago_is_not_called_idle() -> None:
    """Most of what was looked at was before training began."""
    job = (
        Training()
        .goes_on(28, STEPS, load="idle_context", samples=10)
        .goes_on(0.5, STEPS, load="bf16_matmul", samples=10)
    )

    assert job.steps(100, *[0.1] * 60).verdict().cause != "cpu_training"


def test_a_model_that_was_left_on_the_cpu_is_said() -> None:
    """It holds a card and asks nothing of it."""
    verdict = Training().goes_on(12, STEPS, load="idle_context", samples=10).steps(100, *[0.1] * 60).verdict()

    assert verdict.cause == "cpu_training"
    assert "is the model on the CPU?" in verdict.summary


@pytest.mark.parametrize(
    ("stacks", "sure"),
    [
        (STEPS, "certain"),
        ([PRODUCT, *3 * [READS_LOSS]], "certain"),  # h = x @ w, without any module
        ([BACKWARD, OPTIMIZER, READS_LOSS], "medium"),  # it trains, and its forward pass is one compiled function
        ([FORCES, *3 * [READS_LOSS]], "low"),  # molecules, on purpose in full precision: noted, and no verdict
    ],
)
def test_full_precision_is_a_fault_where_matrices_are_multiplied(stacks: list[tuple[Frame, ...]], sure: str) -> None:
    """To the card a simulation looks the same."""
    job = Training()
    job.add(
        SourceLine(file=TRAIN, line=50, text="    hidden = inputs @ weights", calls=()),
        SourceLine(file=TRAIN, line=51, text="    force = torch.sin(waves * place).sum(0)", calls=("torch.sin", "sum")),
    )
    verdict = job.goes_on(12, stacks, load="fp32_matmul", samples=10).verdict()

    assert level_in(verdict, "wrong_precision") == sure
    assert (verdict.cause == "wrong_precision") is (sure != "low")


SPINS = GpuActivity(
    uuid=UUID, interval_seconds=0.2, graphics=1.0, sm_active=0.00758, tensor=0.0, dram=0.00001, fp32=0.0002
)


def seen_at(look: GpuActivity, job: Training) -> Training:
    """A job whose card has been like this all the while."""
    for number in range(round(5 * job.history.at)):
        job.history.add(number / 5, look)
    return job


@pytest.mark.parametrize(
    ("received", "sent", "moves_nothing"),
    [
        (3.6, 4.6, True),  # our own questions and those of thirteen others (two H100)
        (34.0, 39.9, True),  # another begins to ask: nvidia-smi, another perfwatch
        (68.0, 79.8, True),  # two of them at once
        (34.0, 2.1, False),  # a copy to the card
        (2.1, 34.0, False),  # a copy from it
        (70.0, 27.0, False),  # NCCL's kernels poll the host's memory
        (250.0, 33.0, False),
        (400.0, 440.0, False),  # as much each way is work
    ],
)
def test_questions_to_the_driver_are_no_data(received: float, sent: float, moves_nothing: bool) -> None:
    """They go both ways alike, a little more from the card than to it; what a program moves goes one way.

    A kernel that has moved nothing for 70 s is reported as one that does not end, another one is not.
    """
    look = msgspec.structs.replace(SPINS, pcie_received_mib_per_second=received, pcie_sent_mib_per_second=sent)
    verdict = seen_at(look, Training().goes_on(70, [READS_LOSS], samples=10)).verdict()

    assert ((verdict.state, verdict.cause) == ("hung", "stuck_kernel")) is moves_nothing


@pytest.mark.parametrize(("sm_active", "idle"), [(0.0, True), (0.0002, False), (None, False)])
def test_a_context_that_begins_is_no_work(sm_active: float | None, idle: bool) -> None:
    """It takes some per cent of the card for a moment, and none of its multiprocessors (two H100): this training is the CPU's."""
    look = msgspec.structs.replace(SPINS, graphics=0.061, sm_active=sm_active, dram=0.0014)
    job = seen_at(look, Training().goes_on(12, STEPS, samples=10)).steps(100, *[0.1] * 60)

    assert ("gpu 0, which it holds, is idle" in job.verdict().summary) is idle


OWN = GpuProcess(uuid=UUID, pid=PID, local_pid=PID, kind="mps", memory_bytes=2**33)
SERVER = GpuProcess(uuid=UUID, pid=50, local_pid=50, memory_bytes=30 * 2**20, sm_utilisation=0.9)
CLIENT = GpuProcess(uuid=UUID, pid=60, local_pid=60, kind="mps", memory_bytes=2**33)
MEASURED = GpuProcess(uuid=UUID, pid=60, local_pid=60, kind="mps", memory_bytes=2**33, sm_utilisation=0.4)
MEASURED_OTHER = GpuProcess(uuid=UUID, pid=70, local_pid=70, memory_bytes=2**33, sm_utilisation=0.3)


def beside(*listed: GpuProcess) -> Training:
    """Twelve seconds of a training, while the driver lists these."""
    job = Training()
    for second in range(12):
        for one in listed:
            job.history.add(float(second), one)
    return job.goes_on(12, STEPS, load="bf16_matmul", samples=10)


def waits_beside(*listed: GpuProcess) -> Verdict:
    """A thread that asks its card again and again for a value, which kernels come and go on, while the driver lists these."""
    job = Training()
    for second in range(20):
        for one in listed:
            job.history.add(float(second), one)
    return job.goes_on(20, [READS_LOSS], load="starved", samples=10).verdict()


def test_the_server_to_which_the_jobs_own_work_is_booked_is_no_stranger() -> None:
    """It is not of the job, and takes 90 % for it; that nothing can be said of others is said."""
    verdict = beside(OWN, SERVER).verdict()

    assert verdict.cause == "gpu_bound"
    assert confidence_in(verdict, "shared_gpu") == 0.0
    assert any("its server, pid 50" in one.reason for one in verdict.missing)
    assert waits_beside(OWN, SERVER).cause == "synchronising"


@pytest.mark.parametrize(
    ("listed", "surely", "blamed"),
    [
        ((OWN, SERVER, CLIENT), False, ("pid 60",)),
        ((OWN, SERVER, MEASURED), True, ("pid 60",)),
        ((OWN, SERVER, MEASURED_OTHER), False, ("pid 50", "pid 70")),  # one of them is the server
    ],
)
def test_whoever_is_there_beside_job_and_server_is_noted(
    listed: tuple[GpuProcess, ...], surely: bool, blamed: tuple[str, ...]
) -> None:
    """Blamed only for what is measured of it; what the card does may be for others, and says nothing of a thread that waits."""
    verdict = beside(*listed).verdict()
    told = (
        [verdict.summary]
        if verdict.cause == "shared_gpu"
        else [one.summary for one in verdict.findings if one.cause == "shared_gpu"]
    )

    assert (verdict.cause == "shared_gpu") is surely
    assert (confidence_in(verdict, "shared_gpu") > 0.9) is surely
    assert confidence_in(verdict, "shared_gpu") >= 0.5
    assert all(one in told[0] for one in blamed)
    assert len(blamed) > 1 or "pid 50" not in told[0]
    assert waits_beside(*listed).state == "inconclusive"


UNKNOWN = GpuBinding(pid=PID, uuids=(), visible=(), how="", cuda=True)
PLACEHOLDER = Gpu(uuid="gpu 5", index=5, name="", lost=True)
LOST = msgspec.structs.replace(h200("GPU-5", 5), lost=True)
SILENT = GpuSilence(call="sample", uuid="GPU-5", waited_seconds=30.0)


@pytest.mark.parametrize("fault", [PLACEHOLDER, LOST])
def test_a_lost_card_of_nobody_does_not_hide_what_is_seen_of_the_others(fault: Reading) -> None:
    """Eight cards, no binding: one is lost, on another a kernel spins for which the thread waits."""
    job = Training(binding=UNKNOWN)
    job.add(fault)
    job.goes_on(8, STEPS, load="bf16_matmul", samples=10)
    verdict = job.goes_on(40, [READS_LOSS], load="one_spinning_kernel", samples=10).verdict()

    assert (verdict.state, verdict.cause) == ("hung", "stuck_kernel")
    assert level(verdict.confidence) != "certain"


@pytest.mark.parametrize("fault", [LOST, SILENT])
def test_a_fault_of_a_card_that_may_be_anybodys_is_only_suspected(fault: Reading) -> None:
    """The others answer, and the thread stands for a reason that nobody sees."""
    job = Training(binding=UNKNOWN)
    job.add(h200("GPU-5", 5))
    job.goes_on(30, [READS_LOSS]).history.add(22.0, fault)
    verdict = job.verdict()

    assert verdict.state == "inconclusive"
    assert verdict.suspect is not None
    assert verdict.suspect.cause == "driver_unresponsive"


def test_where_every_card_is_lost_it_does_not_matter_whose_they_are() -> None:
    """One card, which the process may use, and no word on who does."""
    job = Training(binding=UNKNOWN).goes_on(14, [READS_LOSS])
    job.add(msgspec.structs.replace(h200(), lost=True))
    verdict = job.goes_on(12, [READS_LOSS]).verdict()

    assert (verdict.state, verdict.cause) == ("hung", "driver_unresponsive")
    assert verdict.confidence == 0.8


def stands_at(*cards: tuple[float, Gpu]) -> Verdict:
    """A thread waits for its card, which may be any of those that were described at these moments."""
    job = Training(card=False)
    job.add(UNKNOWN)
    job.goes_on(30, [READS_LOSS])
    for at, card in cards:
        job.history.add(at, card)
    return job.verdict()


def test_a_card_that_could_not_be_named_and_answers_now_is_lost_no_longer() -> None:
    """It was read under its number alone; its description and samples come under its own name."""
    lost, back = stands_at((0.0, PLACEHOLDER)), stands_at((0.0, PLACEHOLDER), (10.0, h200("GPU-5", 5)))

    assert lost.cause == "driver_unresponsive"
    assert "driver_unresponsive" not in {back.cause, back.suspect and back.suspect.cause}


def test_a_card_that_was_named_before_and_cannot_be_now_is_lost() -> None:
    """A new sampler met it when it was gone already."""
    verdict = stands_at((0.0, h200("GPU-5", 5)), (10.0, PLACEHOLDER))

    assert "driver_unresponsive" in {verdict.cause, verdict.suspect and verdict.suspect.cause}


def beside_busy_neighbours(stacks: list[tuple[Frame, ...]]) -> Verdict:
    """Half a minute of a thread in these stacks, on a card of which another job takes more than half."""
    job = Training()
    for second in range(30):
        for pid, share in ((4711, 0.6), (PID, 0.4)):
            job.history.add(float(second), GpuProcess(uuid=UUID, pid=pid, local_pid=pid, sm_utilisation=share))
    return job.goes_on(30, stacks, load="bf16_matmul", samples=10).verdict()


def test_a_neighbour_says_nothing_of_a_rank_that_makes_no_step() -> None:
    """The card works, and for whom is not known; steps that are seen are slowed down."""
    waits, trains = beside_busy_neighbours([READS_LOSS]), beside_busy_neighbours([*STEPS, READS_LOSS])
    by_a_library = beside_busy_neighbours([(stack[0], Frame("main", TRAIN, 80)) for stack in STEPS])

    assert waits.state not in ("slow", "healthy")
    assert (trains.state, trains.cause) == (by_a_library.state, by_a_library.cause) == ("slow", "shared_gpu")


@pytest.mark.parametrize("at", [4.31, 5.0, 6.27])
def test_a_job_that_has_just_stopped_beside_others_is_not_slow(at: float) -> None:
    """Recorded: two ranks in different collectives, on cards of which other jobs take a part."""
    recording = load_case(RECORDINGS / "shared_gpu" / "lookalike" / "ranks-just-stopped")

    assert diagnose(recording.until(at), at).state == "inconclusive"


def two_ranks(*uuids: str, other: str = "idle_context", visible: tuple[str, ...] = (UUID, OTHER)) -> Verdict:
    """Two ranks that train on these cards of a machine that has two; the load of the other card, and what they may use."""
    job, second = Training(card=False), PID + 50
    job.add(h200(), h200(OTHER, 1))
    for rank, (pid, uuid) in enumerate(zip((PID, second), uuids, strict=True)):
        job.add(
            Process(pid=pid, start_ticks=1, parent_pid=1, name="python", command=("python", "train.py"), python=True,
                    torch_loaded=True, rank=rank, local_rank=rank, world_size=2),
            GpuBinding(pid=pid, uuids=(uuid,), visible=visible, how="nvml", cuda=True),
        )  # fmt: skip
        for moment in range(20):
            job.history.add(float(moment), GpuProcess(uuid=uuid, pid=pid, local_pid=pid, sm_utilisation=0.5))
    under(job.history, other, 0.1, 20.0, uuid=OTHER)
    job.history.at = 0.0
    for moment in range(40):
        at = 0.5 * (moment + 1)
        job.history.add(at, Thread(pid=second, tid=second, name="python", state="R", cpu_seconds=at, run_seconds=at))
        frames = STEPS[moment % len(STEPS)]
        job.history.add(at, Stack(pid=second, tid=second, frames=frames, samples=10, span_seconds=0.4))
    job.history.at = 0.0
    return job.goes_on(20, STEPS, load="bf16_matmul", samples=10).verdict()


def test_ranks_that_share_a_card_while_another_is_idle_are_misplaced() -> None:
    """Plain ``cuda`` is the first card in every rank."""
    verdict = two_ranks(UUID, UUID)

    assert (verdict.state, verdict.cause, verdict.owner) == ("slow", "shared_gpu", "user_code")
    assert "ranks 0 and 1 share gpu 0 while gpu 1 is idle" in verdict.summary
    assert [one.rank for one in verdict.culprits] == [0, 1]


@pytest.mark.parametrize(
    ("uuids", "other", "visible"),
    [
        ((UUID, UUID), "idle_context", (UUID,)),  # the other card may belong to another job
        ((UUID, UUID), "bf16_matmul", (UUID, OTHER)),
        ((UUID, OTHER), "idle_context", (UUID, OTHER)),
    ],
)
def test_ranks_that_could_not_be_placed_better_are_not_blamed(
    uuids: tuple[str, ...], other: str, visible: tuple[str, ...]
) -> None:
    """There is no free card, or each has its own."""
    assert confidence_in(two_ranks(*uuids, other=other, visible=visible), "shared_gpu") == 0.0
