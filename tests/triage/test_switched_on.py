"""What a program has switched on in torch, as the agent tells it, beside what shows in stacks and on the card."""

from collections.abc import Sequence

import pytest

from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, GpuProcess, SourceLine
from tests.cards import UUID
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, TORCH, TRAIN, Training

STEPS = [FORWARD, BACKWARD, OPTIMIZER]
CONV = f"{TORCH}/nn/modules/conv.py"
CONVOLVES = (Frame("_conv_forward", CONV, 548), Frame("forward", CONV, 553), Frame("forward", "/app/net.py", 16))
EMPTIES = (Frame("empty_cache", f"{TORCH}/cuda/memory.py", 224), Frame("train", TRAIN, 31))
INTERVALS = [0.2] * 60


@pytest.mark.parametrize(
    ("load", "modes", "cause"),
    [
        ("tiny_kernels", ("anomaly_detection",), "debug_apis_on"),
        ("tiny_kernels", (), "host_bound_python"),
        ("tiny_kernels", None, "host_bound_python"),
        ("bf16_matmul", ("anomaly_detection",), "gpu_bound"),  # on, and the card is busy all the same
    ],
)
def test_anomaly_detection_is_named_by_the_agents_word(load: str, modes: tuple[str, ...] | None, cause: str) -> None:
    """Where no sample happens to show its frames; it holds the backward pass back, a third of the time here."""
    job = Training().goes_on(12, STEPS, load=load, samples=10).steps(900, *INTERVALS, modes=modes)

    assert job.verdict().cause == cause


def convolving(
    *besides: tuple[Frame, ...],
    modes: tuple[str, ...] | None = None,
    filled_gib: int = 12,
    falls: bool = True,
    stacks: Sequence[tuple[Frame, ...]] = (CONVOLVES, BACKWARD, BACKWARD),
) -> Verdict:
    """A network, of convolutions unless stated otherwise, whose card waits, and whose memory goes up and down."""
    job = Training(sample={"memory_used_bytes": filled_gib * 2**30})
    for second in range(13):
        held = 2**30 * (2 + (second % 2) * 6 * falls)
        job.history.add(float(second), GpuProcess(uuid=UUID, pid=PID, local_pid=PID, memory_bytes=held))
    job.goes_on(12, [*stacks, *besides], load="starved", samples=10)
    return job.steps(900, *INTERVALS, modes=modes).verdict()


def test_a_search_in_every_step_is_told_with_more_confidence_where_the_agent_says_that_cudnn_searches() -> None:
    """What it leaves behind suffices for a name."""
    inferred, told = convolving(), convolving(modes=("cudnn_benchmark",))

    assert (inferred.state, inferred.cause) == (told.state, told.cause) == ("slow", "autotuning")
    assert inferred.confidence < told.confidence


def test_what_only_looks_like_a_search_is_called_otherwise() -> None:
    """One thing is different in each."""
    others = {
        "it does not search": convolving(modes=()),
        "a line empties the cache": convolving(EMPTIES),
        "torch gives back for want of room": convolving(filled_gib=138),
        "it searched once": convolving(modes=("cudnn_benchmark",), falls=False),
    }

    assert {why: other.state for why, other in others.items()} == dict.fromkeys(others, "slow")
    assert [why for why, other in others.items() if other.cause == "autotuning"] == []


def test_a_search_beside_other_layers_is_less_sure() -> None:
    """Memory falls on a card that is far from full, and no line frees it: of what is seen only the search does that."""
    alone, beside = convolving(), convolving(FORWARD, FORWARD)

    assert beside.cause == "autotuning"
    assert beside.confidence < alone.confidence


def test_a_network_without_convolutions_has_no_search_that_frees_memory() -> None:
    """The program may have set a limit to what it may use of the card."""
    verdict = convolving(stacks=[FORWARD, BACKWARD, BACKWARD])

    assert verdict.cause == "allocator_thrash"


def test_memory_that_falls_for_a_reason_that_nobody_sees_is_less_sure_to_be_a_thrash() -> None:
    """Than on a card that was seen full."""
    unseen, full = convolving(modes=()), convolving(filled_gib=138)

    assert unseen.cause == full.cause == "allocator_thrash"
    assert unseen.confidence < full.confidence


LOOK = Frame("look", TRAIN, 70)


@pytest.mark.parametrize(
    ("text", "calls", "told"),
    [("y = x + h", (), True), ("look(frame, event, 0)", ("look",), False)],
)
def test_a_trace_function_is_on_if_the_interpreter_calls_it_and_no_line_does(
    text: str, calls: tuple[str, ...], told: bool
) -> None:
    """A handler of a program's own may have the same arguments."""
    job = Training(card=False)
    job.add(SourceLine(file=TRAIN, line=70, text="seen.append(frame.f_lineno)", traces=True))
    for line in (12, 13, 14):
        job.add(SourceLine(file=TRAIN, line=line, text=text, calls=calls))
    traced = [(LOOK, Frame(name, TRAIN, line)) for name, line in (("cell", 12), ("unroll", 13), ("train", 14))]
    verdict = job.goes_on(20.0, [FORWARD, BACKWARD, OPTIMIZER, *traced]).verdict()

    assert ((verdict.state, verdict.cause) == ("slow", "debug_apis_on")) is told
