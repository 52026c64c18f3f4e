"""Device memory that is given back to the driver: how often it falls, and whose call that may be.

torch's allocator returns its cache when it is told to (``empty_cache``), when the card is full, and each time that cuDNN has tried
its ways to run a convolution, for that takes gigabytes (torch, ``aten/src/ATen/native/cudnn/Conv_v7.cpp``; seen on an H200 with 2.11).
"""

from itertools import pairwise

from perfwatch.triage.cards.accelerated import Accelerated
from perfwatch.triage.case import Case
from perfwatch.triage.shares.debugging import mode_on
from perfwatch.triage.words.frames import tags, tags_of, user_frame
from perfwatch_probes.readings import Gpu, GpuProcess, GpuSample, SourceLine, Stack

WINDOW_SECONDS = 15.0
FALL_BYTES = 20 * 2**20  # the least that torch asks the driver for at once (its large segments)
FALLS_PER_SECOND, FEW_FALLS = 0.25, 2  # memory is looked at once a second: faster swings show as often as they can
FAR_FROM_FULL = 0.7  # of the card's memory: an allocator that gives back for want of room has seen it full
FEW_FORWARD, FEW_TIMES = 10, 3  # samples, and times that the forward pass was entered anew
MOSTLY = 0.7  # of the samples in the forward pass, elsewhere a third or less: a convolution itself returns at once


def memory_used(case: Case, one: Accelerated) -> list[int]:
    """What the rank's own process held, look by look; of the whole card, which is looked at more often, where it has that alone.

    Once a second hides most of what an allocator gives back and asks for anew within a step. Where the driver does not tell what
    a process holds there is only the card.
    """
    looks = [
        seen
        for key in case.history.entities(GpuProcess)
        if key[0] == one.card.uuid
        for seen in case.history.series(GpuProcess, *key, seconds=WINDOW_SECONDS)
    ]
    alone = all(seen.reading.local_pid == one.rank.pid for seen in looks)
    own = [
        seen.reading.memory_bytes
        for seen in looks
        if seen.reading.local_pid == one.rank.pid and seen.reading.memory_bytes is not None
    ]
    of_card = _of_card(case, one)
    return max(own, of_card, key=falls_of) if alone else own or of_card


def _of_card(case: Case, one: Accelerated) -> list[int]:
    looks = case.history.series(GpuSample, one.card.uuid, seconds=WINDOW_SECONDS)
    return [seen.reading.memory_used_bytes for seen in looks if seen.reading.memory_used_bytes is not None]


def falls_of(used: list[int]) -> int:
    """How many looks found a good deal less memory in use than the look before."""
    return sum(1 for before, now in pairwise(used) if before - now >= FALL_BYTES)


def falls_often(falls: int, one: Accelerated) -> bool:
    """Whether that is more than a release now and then."""
    return falls >= max(FEW_FALLS, FALLS_PER_SECOND * min(WINDOW_SECONDS, one.card.seconds))


def empties(case: Case, stack: Stack) -> bool:
    """Whether a stack is in ``empty_cache``, or at a line that calls it."""
    if "empty_cache" in tags(stack):
        return True
    frame = user_frame(stack)
    seen = case.history.latest(SourceLine, frame.file, frame.line) if frame is not None else None
    return seen is not None and any(call.rsplit(".", 1)[-1] == "empty_cache" for call in seen.reading.calls)


def in_convolution(stack: Stack) -> bool:
    """Whether a stack stands at torch's native call for a convolution."""
    return bool(stack.frames) and "convolution" in tags_of(stack.frames[0].function, stack.frames[0].file)


def tries_convolutions(case: Case, one: Accelerated) -> bool:
    """Whether cuDNN searches, step by step, for the way to run convolutions.

    The forward pass then stands in hardly anything but convolutions, and memory that no line gives back falls again and again,
    on a card that is far from full. False where the agent says that it does not search.
    """
    if mode_on(case, one.rank, "cudnn_benchmark") is False:
        return False
    forward = one.profile.share("forward", "convolution")
    convolving = one.profile.share_where(in_convolution)
    if forward * one.profile.samples < FEW_FORWARD or convolving < MOSTLY * forward:
        return False
    if one.profile.turns(in_convolution) < FEW_TIMES or one.profile.share_where(lambda stack: empties(case, stack)):
        return False
    return fills_up(case, one) is False and falls_often(falls_of(memory_used(case, one)), one)


def fills_up(case: Case, one: Accelerated) -> bool | None:
    """Whether the card was seen full, or nearly so; None where nobody knows."""
    card, used = case.history.latest(Gpu, one.card.uuid), _of_card(case, one) or memory_used(case, one)
    if card is None or not card.reading.memory_bytes or not used:
        return None
    return max(used) > FAR_FROM_FULL * card.reading.memory_bytes
