"""Two runs side by side: the differences, how sure they are, and whether the runs may be compared at all."""

from dataclasses import replace

import pytest
from msgspec import structs

from perfwatch.comparison.comparison import (
    Comparison,
    Difference,
    RateDifference,
    StepDifference,
    compare,
    disagreement,
)
from perfwatch.comparison.gate import gate
from perfwatch.recording.recording import Event, Record, Recording
from perfwatch_probes.readings import Gpu, Process, ProcessEnded
from tests.comparison.runs import TRAINER, run, step_times
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session


def difference(comparison: Comparison, name: str) -> Difference:
    """The figure of that name."""
    return next(one for one in comparison.differences if one.name == name)


def test_steps_are_compared_by_their_quantiles_without_the_warm_up() -> None:
    """Ten first steps of five seconds move no figure."""
    both = compare(run(step_times(600, 0.2)), run(step_times(600, 0.22, seed=1)))

    assert [one.quantile for one in both.steps] == ["p50", "p95", "p99"]
    assert both.steps[0].a_seconds == pytest.approx(0.207, abs=0.01)
    assert both.steps[0].change == pytest.approx(0.1, abs=0.04)
    assert both.a.timed_steps == 600
    assert both.a.steps == 610
    assert both.steps[2].a_seconds < 1.0


def bursts(count: int, fast: float, slow: float) -> list[float]:
    """Steps from a queue that is filled anew for every eighth of them."""
    return [(slow if step % 8 == 7 else fast) * drift for step, drift in enumerate(step_times(count, 1.0))]


def test_steps_a_second_decide_where_batches_come_in_bursts() -> None:
    """B's median step takes half the time, and it waits so long for each eighth batch that it is slower."""
    both = compare(run(bursts(600, 0.1, 0.1)), run(bursts(600, 0.05, 1.0)))
    code, said = gate(both, 5)

    assert both.rate is not None
    assert both.rate.a_per_second == pytest.approx(9.7, abs=0.3)
    assert both.rate.change == pytest.approx(-0.4, abs=0.05)
    assert both.steps[0].change == pytest.approx(-0.5, abs=0.05)
    assert code == 60
    assert "the median step of B is faster, but B makes fewer steps a second: B loses time in a few long steps" in said


def test_no_step_of_a_fast_loop_is_left_out_of_the_rate() -> None:
    """Of 200 steps a second a reading holds the newest 64, and a pause of half a second lies before them."""
    steps = [0.5 if step % 100 == 0 else 0.005 for step in range(6000)]
    both = compare(run([0.01] * 6000), run(steps))

    assert both.steps[0].b_seconds == pytest.approx(0.005)
    assert both.rate is not None
    assert (both.rate.a_per_second, both.rate.b_per_second) == pytest.approx((100.0, 6000 / sum(steps)), rel=0.01)


@pytest.mark.parametrize(
    ("b", "says"),
    [
        (step_times(300, 0.22, seed=1), ""),
        ([0.2 * one for one in bursts(300, 1.0, 3.0)], "B is slower, but its median step is not slower by as much"),
        ([*step_times(599, 0.18), 30.0], "the median step of B is faster, but steps a second does not show it"),
    ],
)
def test_where_the_median_step_tells_another_story_that_is_said(b: list[float], says: str) -> None:
    """Agreement needs no words."""
    said = disagreement(compare(run(step_times(300, 0.2)), run(b)))

    assert says in said
    assert bool(says) == bool(said)


def test_a_longer_warm_up_can_be_left_out() -> None:
    """A run that compiles during its first fifty steps."""
    slow_start = run([*(3.0,) * 40, *step_times(300, 0.2)])

    assert compare(slow_start, slow_start, warm_up=50).steps[2].a_seconds < 1.0
    assert compare(slow_start, slow_start, warm_up=10).steps[2].a_seconds == pytest.approx(3.0)


def test_a_phase_that_grew_is_found_and_sure() -> None:
    """B waits for data in 40 % of the samples."""
    both = compare(run(step_times(300, 0.2)), run(step_times(300, 0.2), waiting=0.4))
    waiting = difference(both, "wait for data")

    assert (waiting.a, waiting.sure) == (0.0, True)
    assert waiting.b == pytest.approx(0.4)
    assert not difference(both, "CPU of a rank").sure


def test_resources_are_rates_of_the_training_time() -> None:
    """Half a core and one MiB a second, a quarter of the machine busy."""
    both = compare(run(step_times(300, 0.2)), run(step_times(300, 0.2)))

    assert difference(both, "CPU of a rank").a == pytest.approx(0.5, abs=0.01)
    assert difference(both, "a rank reads").a == pytest.approx(1.0, abs=0.01)
    assert difference(both, "CPUs busy").a == pytest.approx(0.25, abs=0.01)


def test_alike_runs_have_nothing_to_be_unlike_in() -> None:
    """The same twice."""
    alike = run(step_times(60, 0.2))

    assert compare(alike, alike).unlike == ()
    assert compare(alike, alike).steps[0].change == 0.0


def test_what_explains_a_difference_by_itself_is_said_first() -> None:
    """World size, torch, the command line; the kernel and the host come after them."""
    machine = session().machine
    a = run(step_times(60, 0.2), world_size=2, command=("python", "train.py", "--batch", "32"))
    other = type(machine)(name="node-b", kernel="6.2", architecture="x86_64", cpus=8, memory_bytes=2**34)
    b = run(
        step_times(60, 0.2),
        world_size=4,
        torch="2.14.0",
        command=("python", "train.py", "--batch", "64"),
        machine=other,
    )
    unlike = compare(a, b).unlike

    assert {(one.name, one.a, one.b) for one in unlike if one.matters} == {
        ("command line", "32", "64"),
        ("world size", "2", "4"),
        ("torch", "2.13.0", "2.14.0"),
    }
    assert [one.matters for one in unlike] == [True, True, True, False, False]


def armed(number: int) -> dict[str, str]:
    """What ``perfwatch run`` sets."""
    place = f"/dev/shm/perfwatch-0/run-{number}"
    kineto = {"KINETO_IPC_SOCKET_DIR": f"{place}/k", "KINETO_CONFIG": f"{place}/k/config", "KINETO_USE_DAEMON": "1"}
    return {**kineto, "NCCL_RAS_ADDR": f"localhost:{number}", "PERFWATCH_AGENT_DIR": place}


def test_what_perfwatch_sets_itself_is_no_difference() -> None:
    """Its folders and ports are new in each run; what the user has set for Kineto is told."""
    a, b = (run(step_times(60, 0.2), environment=armed(number)) for number in (1, 2))
    own = run(step_times(60, 0.2), environment={**armed(3), "KINETO_CONFIG": "/etc/libkineto.conf"})

    assert compare(a, b).unlike == ()
    assert {one.name for one in compare(a, own).unlike} == {"KINETO_IPC_SOCKET_DIR", "KINETO_CONFIG"}


def test_what_one_recording_does_not_tell_may_be_the_same() -> None:
    """An attach that did not see the world size is not called another job for that."""
    both = compare(run(step_times(60, 0.2)), run(step_times(60, 0.2), conditions={"tokens_per_step": 4096}))

    assert [one.matters for one in both.unlike if one.name == "tokens per step"] == [False]


@pytest.mark.parametrize(
    ("b_seconds", "percent", "code", "says"),
    [
        (0.24, 5, 60, "slower than allowed"),
        (0.2, 5, 0, "not slower than allowed"),
        (0.21, 5, 50, "lies within"),
        (0.1, 0, 0, "not slower than allowed"),
    ],
)
def test_the_gate_fails_only_when_it_is_sure(b_seconds: float, percent: float, code: int, says: str) -> None:
    """And when the interval holds the bound it says that it cannot tell."""
    both = compare(run(step_times(400, 0.2)), run(step_times(400, b_seconds, seed=3)))
    found, said = gate(both, percent)

    assert found == code, said
    assert says in said


@pytest.mark.parametrize(
    ("b", "says"),
    [
        (run(()), "no step times of B"),
        (Recording(session()), "no step times of B"),
        (run(step_times(20, 9.9)), "too few steps (400 and 20"),
    ],
)
def test_the_gate_cannot_tell_without_steps(b: Recording, says: str) -> None:
    """An attach to a run without the agent, an empty recording, a run that ended at once."""
    code, said = gate(compare(run(step_times(400, 0.2)), b), 5)

    assert code == 50
    assert says in said


def ended(intervals: list[float], exit_code: int | None = None, signal: int | None = None) -> Recording:
    """A run that then ended so."""
    whole, end = run(intervals), ProcessEnded(pid=TRAINER, start_ticks=1, exit_code=exit_code, signal=signal)
    last = Record(whole.end + 1, end)
    outcome = Event(last.at, "outcome", "as said")
    return replace(whole, records=(*whole.records, last), events=(outcome,))


@pytest.mark.parametrize(
    ("end", "code", "failed"),
    [
        ({"exit_code": 0}, 0, ""), ({"signal": 15}, 0, ""), ({"exit_code": 1}, 50, "crashed (exit code 1)"),
        ({"signal": 11}, 50, "was ended by SIGSEGV"),
    ],
)  # fmt: skip
def test_a_run_that_failed_does_not_pass(end: dict[str, int], code: int, failed: str) -> None:
    """However fast it was until then; one that was asked to end did what it should."""
    both = compare(run(step_times(300, 0.2)), ended(step_times(300, 0.1), **end))
    found, said = gate(both, 5)

    assert found == code
    assert failed in both.b.failed
    assert bool(failed) == bool(both.b.failed)
    assert both.b.failed in said


def stopped(name: str, signal: int) -> Recording:
    """A recorded run that a signal then ended."""
    whole = load_case(RECORDINGS / name)
    at, (top,) = whole.end + 1, whole.session.root_pids
    begun = next(one.reading.start_ticks for one in whole.records if isinstance(one.reading, Process))
    end = Record(at, ProcessEnded(pid=top, start_ticks=begun, exit_code=None, signal=signal))
    told = Event(at, "outcome", f"ended by signal {signal}")
    return replace(whole, records=(*whole.records, end), events=(*whole.events, told))


@pytest.mark.parametrize("signal", [9, 15])
def test_runs_that_were_ended_have_the_verdict_of_replay_and_the_one_while_they_ran(signal: int) -> None:
    """Whichever signal it was; SIGTERM is no failure, and says nothing of how they trained."""
    one = stopped("host_bound_python/fires/host_bound_python", signal)
    two = stopped("gpu_bound/fires/gpu_bound-run", 15)
    both, alike = compare(one, two), compare(one, one)

    assert [(side.state, side.cause) for side in (both.a, both.b)] == [("gone", "killed")] * 2
    assert [side.lived for side in (both.a, both.b)] == [("slow", "host_bound_python"), ("healthy", "gpu_bound")]
    assert bool(both.a.failed) == (signal == 9)
    assert (both.verdict_changed, alike.verdict_changed) == (signal == 15, False)


def test_a_median_that_may_explain_the_rate_is_not_called_equal() -> None:
    """Where its interval holds both no change and all of it, longer runs tell."""
    rate = RateDifference(a_per_second=5.0, b_per_second=4.0, change=-0.2, change_interval=(-0.3, -0.1))
    median = StepDifference(quantile="p50", a_seconds=0.2, b_seconds=0.25, change=0.25, change_interval=(-0.02, 0.6))
    alike = compare(run(step_times(60, 0.2)), run(step_times(60, 0.2)))

    said = disagreement(structs.replace(alike, rate=rate, steps=(median,)))

    assert said == "B is slower; whether its median step is too is not certain with so few steps: longer runs tell"


def test_a_run_that_failed_and_was_slower_fails() -> None:
    """What is sure is said."""
    assert gate(compare(run(step_times(300, 0.1)), ended(step_times(300, 0.2), exit_code=1)), 5)[0] == 60


def test_an_empty_recording_is_said_to_be_empty() -> None:
    """A watcher that was killed at once."""
    both = compare(run(step_times(60, 0.2)), Recording(session()))

    assert "it is empty: nothing was read" in both.b.missing
    assert both.steps == ()


def test_two_real_runs_on_a_gpu_differ_in_verdict_clock_and_what_the_card_did() -> None:
    """A decoder that fills its card, and a loop that launches too slowly, as they were recorded on one H200."""
    a, b = (
        load_case(RECORDINGS / name)
        for name in ("gpu_bound/fires/gpu_bound-run", "host_bound_python/fires/host_bound_python")
    )
    both = compare(a, b)

    assert ((both.a.state, both.a.cause), (both.b.state, both.b.cause)) == (
        ("healthy", "gpu_bound"),
        ("slow", "host_bound_python"),
    )
    assert both.verdict_changed
    assert {"SM clock", "command line", "world size"} <= {one.name for one in both.unlike}
    tensor, resident = difference(both, "tensor cores active"), difference(both, "a kernel is resident")
    assert [tensor.a, tensor.b, resident.a, resident.b] == pytest.approx([0.546, 0.0, 1.0, 0.137], abs=0.01)


def test_a_card_of_another_kind_or_driver_is_said_before_the_figures() -> None:
    """The same recording as another card under another driver would have given it."""
    a = load_case(RECORDINGS / "gpu_bound/fires/gpu_bound-run")
    older = tuple(
        structs.replace(one, reading=structs.replace(one.reading, name="NVIDIA A100", driver_version="535.1"))
        if isinstance(one.reading, Gpu)
        else one
        for one in a.records
    )
    unlike = {one.name: (one.a, one.b) for one in compare(a, replace(a, records=older)).unlike}

    assert unlike["GPUs"] == ("1 x NVIDIA H200", "1 x NVIDIA A100")
    assert unlike["GPU driver"][1] == "535.1"
