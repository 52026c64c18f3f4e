"""Where card, host and ranks wait for each other."""

import bisect
from collections import Counter

from perfwatch.headroom.evidence.products import cudnn_search
from perfwatch.headroom.evidence.updates import optimizer_on_cpu
from perfwatch.headroom.facts import WORTH, Facts, Seen, step_line, towards
from perfwatch.headroom.gain import Saved
from perfwatch.headroom.step import SECOND, Kernel, Operation
from perfwatch.text import duration
from perfwatch.traces.intervals import length, union, without
from perfwatch.traces.torch_host import inside

# What torch itself notes of them: the mark of a wrapper that the change is for.
DDP = ("DistributedDataParallel.", "torch::distributed::reducer", "torch.distributed.ddp.reducer")
FSDP = ("FullyShardedDataParallel.", "FSDP::")


def synchronising_reads(facts: Facts) -> Seen | None:
    """Values that the host reads off the card within a step."""
    steps = facts.steps
    reads = [
        one for one in facts.reads if not (inside(steps.main.loading, one[0]) or inside(steps.main.optimizer, one[0]))
    ]
    if len(reads) < steps.count:
        return None
    gap = sum(facts.gaps.values())
    if gap < 0.05 * facts.whole:
        return None
    after = 0.0
    begins = [one[0] for one in steps.busy]
    for _, end, _, _ in reads:
        at = bisect.bisect_right(begins, end)
        if at < len(begins) and (at == 0 or steps.busy[at - 1][1] <= end + 20.0):
            after += begins[at] - max(end, steps.busy[at - 1][1] if at else end)
    places = Counter(_place(facts, one) for one in reads)
    where, count = places.most_common(1)[0]
    told = (
        f"the host reads a value off the card {len(reads) / steps.count:,.0f} times a step, mostly in {where} "
        f"({count / steps.count:,.0f} times); each time the card runs empty, {facts.share(gap)} in all"
    )
    after = min(after / SECOND / steps.count, gap)
    line = where if ":" in where and "aten" not in where else ""
    return Seen(
        told,
        Saved(rest=0.5 * min(after, facts.budget.rest)),
        Saved(rest=facts.whole),
        line,
    )


def _place(facts: Facts, read: tuple[float, float, str, int]) -> str:
    begin, _, operation, thread = read
    return facts.steps.line_at(begin, thread) or operation or "the program"


def pageable_copies(facts: Facts) -> Seen | None:
    """Copies to the card from memory that may be paged out."""
    steps = facts.steps
    pageable = [one for one in steps.kernels if "Pageable" in one.name and "HtoD" in one.name]
    size = sum(one.moved_bytes for one in pageable) / steps.count
    spans = union((one.begin, one.end) for one in pageable)
    alone = length(without(spans, steps.computing)) / SECOND / steps.count
    if size < 2**20 or facts.gaps is None:
        return None
    made = _made_on_host(facts, pageable)
    if alone + made < WORTH * facts.whole or (_is_optimizer_on_host(facts)):
        return None
    rate = size / max(1e-9, length(spans) / SECOND / steps.count) / 1e9
    copier = [one.operation for one in pageable if one.operation is not None]
    told = f"{size / 2**20:,.0f} MiB a step are copied from pageable memory at {rate:,.0f} GB/s; in {facts.share(alone)} nothing else runs"
    if made > WORTH * facts.whole:
        told += f", and the host makes them for {facts.share(made)}"
    # [measured] pinned memory over PCIe 5: 50 GB/s and more, against 5 to 12 pageable; what is made on the card is not copied.
    keep, least = facts.whole, 0.6 * alone + 0.5 * made
    return Seen(
        told,
        towards(facts.budget, keep - least),
        towards(facts.budget, max(facts.budget.card - alone, facts.budget.host_least - made, 0.1 * keep)),
        steps.top_line(copier, lambda one: sum(k.moved_bytes for k in one.kernels)),
    )


def _is_optimizer_on_host(facts: Facts) -> bool:
    return optimizer_on_cpu(facts) is not None


def _made_on_host(facts: Facts, copies: list[Kernel]) -> float:
    """Seconds a step of the host in operations without kernels, as long as a copy is worth: what makes the tensors."""
    if not copies:
        return 0.0
    own = [
        one
        for one in facts.steps.operations
        if one.above is None and not one.kernels and one.end - one.begin > 200 and not one.engine
        and not _launches_inside(facts, one)
        and not inside(facts.steps.main.loading, one.begin) and not inside(facts.steps.main.optimizer, one.begin)
    ]  # fmt: skip
    return length(without(union((one.begin, one.end) for one in own), facts.steps.waiting)) / SECOND / facts.steps.count


def _launches_inside(facts: Facts, operation: Operation) -> bool:
    calls = facts.steps.threads[operation.thread].calls_by_begin
    at = bisect.bisect_left(calls, (operation.begin,))
    return at < len(calls) and calls[at][1] <= operation.end


def data_loading(facts: Facts) -> Seen | None:
    """A card that waits for the next batch."""
    seconds = facts.gaps.get("data", 0.0)
    if seconds < 0.03 * facts.whole:
        return None
    names = [name for _, _, name in facts.steps.main.annotations if name.startswith("enumerate(DataLoader)")]
    workers = "" if any("MultiProcessing" in name for name in names) else ", which the training process makes itself"
    told = f"the card waits for the next batch in {facts.share(seconds)}{workers}"
    # What is left are launches, and of their time in the trace the profiler has its part.
    launches = sum(facts.gaps.values()) - seconds
    number = next((key for key, one in facts.steps.threads.items() if one is facts.steps.main), 0)
    begin = next((one[0] for one in facts.steps.main.annotations if one[2].startswith("enumerate(DataLoader)")), 0.0)
    return Seen(
        told, towards(facts.budget, facts.whole - 0.6 * seconds), towards(facts.budget, facts.budget.card + 0.4 * launches),
        facts.steps.line_at(begin, number),
    )  # fmt: skip


def allocator(facts: Facts) -> Seen | None:
    """An allocator that asks the driver in every step."""
    steps = facts.steps
    calls = [
        (begin, end)
        for thread in steps.threads.values()
        for begin, end, name in thread.calls
        if name.startswith(
            ("cudaMalloc", "cudaFree")
        )  # segments that expand already are mapped by cuMemMap and its like
        and "Host" not in name
        and "Async" not in name
    ]
    seconds = length(union(calls)) / SECOND / steps.count
    if len(calls) < steps.count or seconds < WORTH * facts.whole or cudnn_search(facts) is not None:
        return None
    told = f"torch asks the driver for memory {len(calls) / steps.count:,.0f} times a step, {facts.share(seconds)}"
    least, most = facts.spread(seconds, 0.3, 1.0)
    return Seen(told, towards(facts.budget, facts.whole - least), towards(facts.budget, facts.whole - most))


def no_sync(facts: Facts) -> Seen | None:
    """Gradients that are exchanged in each of several passes of a step."""
    steps = facts.steps
    passes = steps.backwards_in_step
    sums = [
        one
        for one in steps.kernels
        if one.family == "collective" and one.part in ("backward", "other") and "llGather" not in one.name
    ]
    if passes < 2 or len(sums) < passes * steps.count or not steps.runs((*DDP, *FSDP)):
        return None
    exchanging = _passes_with(facts, sums)
    if exchanging < 2:
        return None
    spans = union((one.begin, one.end) for one in sums)
    exposed = steps.exposed_seconds(sums)
    beside = length(spans) / SECOND / steps.count - exposed
    if exposed + beside < WORTH * facts.whole:
        return None
    told = (
        f"gradients are exchanged in {exchanging:.0f} of the {passes} passes of a step: {facts.share(exposed + beside)}, "
        f"{facts.share(exposed)} with nothing beside it"
    )
    less = 1 - 1 / exchanging
    host = facts.host_of(len(sums) / steps.count)
    return Seen(
        told,
        Saved(card=0.7 * less * exposed),
        Saved(card=less * (exposed + 0.4 * beside), host=less * host),
        step_line(facts),
    )


def _passes_with(facts: Facts, collectives: list[Kernel]) -> float:
    """Backward passes a step in which a collective was launched."""
    launches = sorted(one.launched for one in collectives if one.launched is not None)
    with_one = sum(
        bisect.bisect_left(launches, begin) < bisect.bisect_right(launches, end) for begin, end in facts.steps.passes
    )
    return with_one / facts.steps.count


def bucket_size(facts: Facts) -> Seen | None:
    """Gradients that are exchanged after the backward pass instead of beside it."""
    steps = facts.steps
    sums = [
        one
        for one in steps.kernels
        if one.family == "collective" and "AllReduce" in one.name and one.part in ("backward", "other")
    ]
    spans = union((one.begin, one.end) for one in sums)
    exposed = steps.exposed_seconds(sums)
    if exposed < 0.03 * facts.whole or not steps.runs(DDP):  # tensor parallelism sums in the backward pass as well
        return None
    buckets = len(sums) / max(1.0, steps.backwards_in_step) / steps.count
    few = buckets <= 3
    if not few and exposed < 0.5 * length(spans) / SECOND / steps.count:
        return None
    told = f"{facts.share(exposed)} only exchanges gradients, in {buckets:,.0f} all-reduces a pass: " + (
        "most of them begins when the backward pass is over" if few else "they are too small for the link"
    )
    least, most = facts.spread(exposed, 0.4 if few else 0.2, 0.95)
    return Seen(
        told,
        Saved(card=least),
        Saved(card=most),
        step_line(facts),
        "" if few else "the network may be slower than the card",
    )


def unused_parameters(facts: Facts) -> Seen | None:
    """DDP walks the graph for parameters that no loss reaches."""
    walks = [one for one in facts.steps.operations if "search_unused_parameters" in one.name]
    seconds = sum(one.end - one.begin for one in walks) / SECOND / facts.steps.count
    if not walks:
        return None
    told = f"DDP looks for unused parameters {len(walks) / facts.steps.count:,.0f} times a step: {duration(seconds, 3)} of the host"
    return Seen(told, Saved(host=seconds), Saved(host=1.5 * seconds))


def fsdp_prefetch(facts: Facts) -> Seen | None:
    """Parameters that are gathered again in the backward pass, with nothing beside it."""
    steps = facts.steps
    gathers = [one for one in steps.kernels if one.family == "collective" and "AllGather" in one.name]
    exposed = steps.exposed_seconds(gathers)
    again = union((one.begin, one.end) for one in gathers if one.part == "backward")
    second = length(without(again, steps.computing)) / SECOND / steps.count
    if exposed < 0.03 * facts.whole or not again or not steps.runs(FSDP):
        return None
    told = f"{facts.share(exposed)} only gathers parameters, {facts.share(second)} of it a second time, for the backward pass"
    return Seen(told, Saved(card=0.2 * exposed), Saved(card=0.9 * exposed))
