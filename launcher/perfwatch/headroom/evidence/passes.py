"""The passes of a step: many small kernels where few would do, what is computed twice, and too small pieces."""

import re
from collections import Counter
from itertools import pairwise
from math import prod

from perfwatch.headroom.facts import GIB, WORTH, Facts, Seen, longest, operations_of, towards
from perfwatch.headroom.gain import Saved
from perfwatch.headroom.roofs import HALF
from perfwatch.headroom.step import SECOND, Operation
from perfwatch.text import duration
from perfwatch.traces.intervals import length, union, without
from perfwatch.traces.torch_host import inside

FEW_LAUNCHES = 200  # a step: a graph or a compiler has something to merge
ONE_KERNEL = re.compile(r"batchnorm_|bn_[fb]w_")
LEAST_TOKENS = 8  # one after the other: they are generated
MOST_PADDING = 0.6  # of what a batch computes; less is usual where lengths are like each other


def flash_attention(facts: Facts) -> Seen | None:
    """Attention that writes its matrix out."""
    operations = facts.scores
    seconds = sum(one.device for one in operations) / SECOND / facts.steps.count
    if seconds < WORTH * facts.whole:
        return None
    heads = max((prod(one.sizes[0]) for one in operations if "softmax" in one.name), default=0)
    size = next((one.sizes[0] for one in operations if "softmax" in one.name and one.sizes), ())
    full = sum(one.device for one in operations if one.type == "float" and one.name != "aten::bmm") > 0.5 * sum(
        one.device for one in operations if one.name != "aten::bmm"
    ) and any(one.type == "float" for one in operations if one.name == "aten::bmm")
    shown = " x ".join(f"{one:,}" for one in size)
    told = f"{facts.share(seconds)} is attention that writes out its matrix of {shown} ({heads * (4 if full else 2) / 2**20:,.0f} MiB)"
    # FlashAttention-2 (Dao 2023): 3 to 10 times a plain implementation in 16 bits; sdpa has no flash kernel for fp32, only the
    # memory-efficient one.
    least, most = facts.spread(seconds, *((0.3, 0.8) if full else (0.75, 0.99)))
    count = len(operations) / facts.steps.count
    return Seen(
        told, Saved(card=least), Saved(card=most, host=0.4 * facts.host_of(count)), facts.steps.top_line(operations)
    )


def attention_mask(facts: Facts) -> Seen | None:
    """sdpa under a dense mask, which its flash kernel does not take."""
    masked = [
        one
        for one in facts.steps.operations
        if one.name in ("aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_cudnn_attention")
        and len(one.sizes) > 3 and len(one.sizes[3]) >= 2
    ]  # fmt: skip
    if not masked or not all(one.type in HALF for one in masked):
        return None
    masks = {one.sizes[3] for one in masked}  # the backward pass is given them as well
    seconds = facts.steps.per_step(
        one
        for one in facts.steps.kernels
        if one.family == "attention" and one.operation is not None
        and any(size in masks for around in one.operation.outer() for size in around.sizes)
    )  # fmt: skip
    if seconds < WORTH * facts.whole:
        return None
    shown = " x ".join(f"{one:,}" for one in masked[0].sizes[3])
    told = f"{facts.share(seconds)} is attention under a dense mask of {shown}, which keeps sdpa from its flash kernel"
    least, most = facts.spread(seconds, 0.35, 0.75)
    return Seen(
        told, Saved(card=least), Saved(card=most), facts.steps.top_line(masked, lambda one: one.end - one.begin)
    )


def compile_(facts: Facts) -> Seen | None:
    """Loops that a compiler would fuse."""
    seconds = facts.steps.per_step(facts.loops)
    if facts.fused or facts.graphed > 0.5 or not facts.loops:
        return None
    launched = len(facts.loops) / facts.steps.count
    told = (
        f"{facts.share(seconds)} are {launched:,.0f} pointwise, normalisation and copy kernels a step, each by itself "
        f"({longest(facts.loops)})"
    )
    # cuDNN's batch normalisation is one kernel already.
    whole = facts.steps.per_step(one for one in facts.loops if ONE_KERNEL.search(one.name))
    least, most = 0.3 * (seconds - whole), 0.7 * seconds
    host = facts.host_of(launched)
    return Seen(
        told, Saved(card=least), Saved(card=most, host=0.4 * host), facts.steps.top_line(operations_of(facts.loops))
    )


def cuda_graphs(facts: Facts) -> Seen | None:
    """A card that waits for launches."""
    launch_gaps = sum(seconds for what, seconds in facts.gaps.items() if what.startswith("launches") or what == "host")
    if (
        facts.graphed > 0.5
        or facts.launches < FEW_LAUNCHES
        or len(facts.reads) >= facts.steps.count
        or launch_gaps < 0.1 * facts.whole
    ):
        return None
    if facts.budget.host < 0.7 * facts.whole or facts.steps.main.loading:
        return None  # the host has time: it waits for something else
    told = (
        f"the card has nothing to do in {facts.share(launch_gaps)} while the host launches {facts.launches:,.0f} kernels of "
        f"{duration(facts.steps.per_step(facts.steps.kernels) / facts.launches, 3)}, one by one"
    )
    between = facts.launches * 1e-6  # a graph starts its kernels about a microsecond apart
    host = facts.budget.host
    return Seen(
        told,
        Saved(card=-between, host=0.75 * host),
        Saved(card=-0.2 * between + 0.1 * facts.budget.card, host=0.97 * host),
        unsure="shapes and addresses must stay the same from step to step",
    )


def vocabulary_loss(facts: Facts) -> Seen | None:
    """A loss over the vocabulary in fp32, as several passes over the logits."""
    wide = [
        one
        for one in facts.steps.operations
        if one.kernels and one.sizes and one.type == "float" and len(one.sizes[0]) >= 2 and one.sizes[0][-1] >= 8192
        and any(word in one.name for word in ("log_softmax", "nll_loss", "cross_entropy"))
    ]  # fmt: skip
    if not wide:
        return None
    size, losses = wide[0].sizes[0], set(wide)
    around = [
        one for one in facts.steps.operations
        if one.kernels and one not in losses and any(prod(given) == prod(size) and given and given[-1] == size[-1] for given in one.sizes)
        and one.name in ("aten::copy_", "aten::fill_", "aten::mul", "aten::div", "aten::add")
    ]  # fmt: skip
    seconds = sum(one.device for one in [*wide, *around]) / SECOND / facts.steps.count
    if seconds < 0.05 * facts.whole or facts.fused:
        return None
    told = f"{facts.share(seconds)} are passes over logits of {size[0]:,} x {size[-1]:,} in fp32 ({prod(size) * 4 / GIB:.1f} GiB)"
    least, most = facts.spread(seconds, 0.3, 0.7)
    return Seen(told, Saved(card=least), Saved(card=most), facts.steps.top_line(wide))


def padding(facts: Facts) -> Seen | None:
    """Sequences that are padded to the longest of their batch: a mask for each of them, the same for every query."""
    masked = [one for one in facts.steps.operations if one.name == "aten::scaled_dot_product_attention" and _pads(one)]
    if not masked:
        return None
    sizes = sorted({one.sizes[3] for one in masked}, key=lambda size: size[-1])
    shown = " x ".join(f"{one:,}" for one in sizes[-1])
    lengths = f", {sizes[0][-1]:,} to {sizes[-1][-1]:,} from batch to batch" if sizes[0][-1] < sizes[-1][-1] else ""
    told = f"attention hides keys of each sequence under a mask of {shown}: sequences are padded to one length{lengths}"
    seconds = facts.steps.per_step(
        one for one in facts.steps.kernels if one.part in ("forward", "backward", "recomputation")
    )
    return Seen(
        told, Saved(), Saved(card=MOST_PADDING * seconds), facts.steps.top_line(masked, lambda one: one.end - one.begin),
        "how much of it is padding is not in the trace: count the tokens that are real",
    )  # fmt: skip


def _pads(operation: Operation) -> bool:
    """True if a mask says which keys exist, for each sequence of the batch: all queries see the same."""
    if len(operation.sizes) < 4 or len(operation.sizes[3]) != 4:
        return False
    batch, mask = operation.sizes[0][0] if operation.sizes[0] else 0, operation.sizes[3]
    strides = operation.strides[3] if len(operation.strides) > 3 else ()
    over = strides if len(strides) == 4 else (1, 1, 1, 1)
    return 1 < batch == mask[0] and over[0] != 0 and (mask[2] == 1 or over[2] == 0)


def _looked_up(facts: Facts) -> list[Operation]:
    """Tokens of [batch, length] without a gradient, in their order."""
    found = (
        one for one in facts.steps.operations
        if one.name == "aten::embedding" and len(one.sizes) > 1 and len(one.sizes[1]) == 2 and one.sequence is None
    )  # fmt: skip
    return sorted(found, key=lambda one: one.begin)


def _spent(facts: Facts, runs: list[list[Operation]]) -> tuple[float, float]:
    """Seconds a step of the card and of the host in runs of lookups."""
    spans = union((run[0].begin, run[-1].end) for run in runs)
    works = (one for one in facts.steps.kernels if one.launched is not None and inside(spans, one.launched))
    host = length(without(spans, facts.steps.waiting)) / SECOND / facts.steps.count
    return facts.steps.per_step(works), host


def batched_generation(facts: Facts) -> Seen | None:
    """Sequences that are generated token by token, one batch after the other, where one batch would do."""
    runs: list[list[Operation]] = []
    for one in _looked_up(facts):
        if one.sizes[1][1] > 1:
            runs.append([one])  # the prompt
        elif runs and runs[-1][0].sizes[1][0] == one.sizes[1][0]:
            runs[-1].append(one)
    runs = [run for run in runs if len(run) >= LEAST_TOKENS]
    alike = Counter(run[0].sizes[1] for run in runs)
    if not alike:
        return None
    prompt, seen = alike.most_common(1)[0]
    count = seen / facts.steps.count
    if count < 2:
        return None
    card, host = _spent(facts, [run for run in runs if run[0].sizes[1] == prompt])
    host *= facts.steps.host_scale
    if max(card, host) < WORTH * facts.whole:
        return None
    tokens = max(len(run) for run in runs) - 1
    told = (
        f"{facts.share(max(card, host))} generates {count:,.0f} times {tokens:,} tokens for a prompt of {prompt[0]:,} x "
        f"{prompt[1]:,}, one after the other"
    )
    fewer = 1 - 1 / count
    # Reading the weights takes the same time for one sequence as for some dozens.
    return Seen(
        told, Saved(card=0.4 * fewer * card, host=0.75 * fewer * host),
        Saved(card=fewer * card, host=fewer * host, rest=fewer * facts.budget.rest), facts.steps.line(runs[0][-1]),
    )  # fmt: skip


def kv_cache(facts: Facts) -> Seen | None:
    """Generation that computes the whole prefix for each token."""
    steps = facts.steps
    runs: list[list[Operation]] = []
    for one in _looked_up(facts):
        last = runs[-1][-1] if runs else None
        if last is not None and one.sizes[1][0] == last.sizes[1][0] and one.sizes[1][1] == last.sizes[1][1] + 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    runs = [run for run in runs if len(run) >= LEAST_TOKENS]
    if not runs:
        return None
    card, host = _spent(facts, runs)
    if max(card, host) < WORTH * facts.whole:
        return None
    lengths = runs[0][0].sizes[1][1], runs[0][-1].sizes[1][1]
    told = (
        f"{facts.share(max(card, host))} generates tokens, each by computing the whole prefix again "
        f"({lengths[0]:,} to {lengths[1]:,} positions)"
    )
    return Seen(told, Saved(card=0.4 * card), Saved(card=0.95 * card, host=0.2 * host), steps.line(runs[0][0]))


def cudnn_rnn(facts: Facts) -> Seen | None:
    """A recurrent layer as a loop over cells."""
    steps = facts.steps
    cells = [one for one in steps.operations if re.search(r"_thnn_fused_(?:lstm|gru)_cell$", one.name)]
    if len(cells) < 20 * steps.count:
        return None
    begin_end = sorted((one.begin, one.end) for one in cells if not one.engine)
    spans = [(a[0], b[0]) for a, b in pairwise(begin_end) if b[0] - a[0] < 2000]
    forward = length(union(spans)) / SECOND / steps.count
    share = min(0.9, 3 * forward / facts.whole)
    told = f"a recurrent layer is a loop over {len(cells) / steps.count:,.0f} cells a step, each launched by itself"
    keep = facts.whole * (1 - share)
    return Seen(
        told, towards(facts.budget, keep + 0.5 * share * facts.whole), towards(facts.budget, keep + 0.03 * share * facts.whole),
        steps.top_line(cells),
    )  # fmt: skip


def checkpointing(facts: Facts) -> Seen | None:
    """Layers that are computed twice."""
    steps = facts.steps
    again = [one for one in steps.kernels if one.part == "recomputation"]
    seconds = steps.per_step(again)
    if seconds < WORTH * facts.whole:
        return None
    held, has = steps.peak_bytes, steps.card.memory_bytes
    if held is not None and has is not None and held > 0.6 * has:
        return None
    memory = f"; {held / GIB:,.0f} of {has / GIB:,.0f} GiB are in use" if held is not None and has is not None else ""
    told = f"{facts.share(seconds)} computes layers again in the backward pass{memory}"
    unsure = "" if memory else "how much memory is free is not in the trace: try it on some layers first"
    # Autograd's hooks and the state of the generators are the host's, too.
    host = facts.budget.host * sum(one.recomputed for one in steps.operations) / max(1, len(steps.operations))
    return Seen(
        told,
        Saved(0.9 * seconds, 0.3 * host),
        Saved(1.25 * seconds, host),
        steps.top_line(operations_of(again)),
        unsure,
    )


def micro_batch(facts: Facts) -> Seen | None:
    """Several small batches instead of one."""
    steps = facts.steps
    passes = steps.backwards_in_step
    if passes < 2:
        return None
    held, has = steps.peak_bytes, steps.card.memory_bytes
    if held is not None and has is not None and held > 0.5 * has:
        return None
    sms = steps.card.sms or 0
    works = [one for one in steps.kernels if one.part in ("forward", "backward") and one.family != "collective"]
    unfilled = steps.per_step(one for one in works if one.blocks is not None and one.blocks < sms)
    free = facts.whole - facts.budget.card
    if unfilled < 0.1 * facts.whole and free < 0.1 * facts.whole:
        return None
    memory = (
        f", and {held / GIB:,.0f} of {has / GIB:,.0f} GiB are in use" if held is not None and has is not None else ""
    )
    told = (
        f"a step is {passes} passes; in {facts.share(unfilled)} kernels have fewer blocks than the card has multiprocessors, in "
        f"{facts.share(free)} none runs{memory}"
    )
    unsure = "" if memory else "how much memory is free is not in the trace"
    times = min(passes, 4)
    passed = steps.per_step(works)
    least = Saved(
        card=0.5 * unfilled * (1 - 1 / times) + 0.02 * passed, host=facts.budget.host * 0.8 * (1 - 1 / passes)
    )
    most = Saved(
        card=0.35 * (passed - unfilled) + unfilled * (1 - 1 / passes),
        host=facts.budget.host * (1 - 1 / passes),
        rest=facts.budget.rest,
    )
    return Seen(told, least, most, unsure=unsure)
