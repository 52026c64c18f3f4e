"""A thread that waits for its card looks like a computation; only the card tells the two apart."""

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import (
    Frame,
    GpuActivity,
    GpuBinding,
    GpuProcess,
    Process,
    SourceLine,
    Stack,
    Thread,
    Traffic,
    Wait,
)
from tests.cards import UUID, bound, history_until
from tests.sessions import session
from tests.training import BACKWARD, ENGINE, FORWARD, OPTIMIZER, PID, READS_LOSS, SLEEP, TORCH, Training

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
    for job, stacks in ((printing, [FORWARD, (PRINTS,), (PRINTS,), BACKWARD]), (reading, [READS_LOSS])):
        if binding is not None:
            job.add(binding)
        job.goes_on(20, stacks, writes=2)

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
