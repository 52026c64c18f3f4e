"""How the parameters are updated."""

import re
from itertools import pairwise
from math import prod

from perfwatch.headroom.facts import GIB, WORTH, Facts, Seen, step_line, towards
from perfwatch.headroom.gain import Budget, Saved
from perfwatch.headroom.roofs import matrices, memory_gb_per_second
from perfwatch.headroom.step import SECOND, Operation
from perfwatch.traces.intervals import length, union
from perfwatch.traces.torch_host import inside

# Of torch.optim, those that take fused=True, and those that take foreach=True alone.
TAKES_FUSED = re.compile(r"^Optimizer\.step#(?:Adam|AdamW|SGD|Adagrad)\.")
TAKES_FOREACH = re.compile(r"^Optimizer\.step#(?:RMSprop|NAdam|RAdam|Adamax|Adadelta|ASGD|Rprop)\.")
LEAST_GRADIENT = 2**10  # bytes; a value that is read, such as the norm of all gradients, has 8
IN_PLACE = re.compile(r"^aten::(?:mul|add|sub|lerp|copy|addcmul|addcdiv|div)_$")


def fused_optimizer(facts: Facts) -> Seen | None:
    """Parameters that are updated one by one."""
    steps = facts.steps
    kernels = [one for one in facts.optimizer_kernels if not one.host_copy]
    fusible, either = (
        union(
            (begin, end)
            for thread in steps.threads.values()
            for begin, end, name in thread.annotations
            if any(one.match(name) for one in those)
        )
        for those in ((TAKES_FUSED,), (TAKES_FUSED, TAKES_FOREACH))
    )
    together = [
        one
        for one in kernels
        if one.family == "optimizer" and "multi_tensor" in one.name.lower() and inside(fusible, one.launched or -1.0)
    ]
    loop = [one for one in kernels if one.family != "optimizer" and inside(either, one.launched or -1.0)]
    least_card = most_card = least_host = most_host = least_rest = most_rest = 0.0
    told = []
    if len(loop) / steps.count >= 50:
        seconds = steps.per_step(loop)
        least_card, most_card = facts.spread(seconds, 0.4, 0.9)
        least_host, most_host = facts.spread(facts.optimizer_host, 0.8, 1.3)
        least_rest, most_rest = facts.spread(facts.gaps["launches in the optimizer"], 0.3, 1.0)
        told.append(
            f"the optimizer updates its parameters one by one: {len(loop) / steps.count:,.0f} kernels a step, "
            f"{facts.share(max(seconds, facts.optimizer_host))}"
        )
    elif together and not any("fused" in one.name.lower() for one in together):
        seconds = steps.per_step(together)
        least_card, most_card = facts.spread(seconds, 0.3, 0.75)
        most_host = 0.9 * facts.optimizer_host  # Python goes over the parameters in both
        told.append(f"the optimizer takes {facts.share(seconds)} in several passes over its state (foreach, not fused)")
    where, seconds, host = _looped(facts)
    if host or seconds:
        least_card, most_card = least_card + 0.4 * seconds, most_card + 0.9 * seconds
        least_host, most_host = least_host + 0.8 * host, most_host + 1.3 * host
        told.append(f"{where} updates tensors one by one outside the optimizer ({facts.share(max(seconds, host))})")
    if not told or max(most_card, most_host) < WORTH * facts.whole:
        return None
    return Seen(
        "; ".join(told), Saved(least_card, least_host, least_rest), Saved(most_card, most_host, most_rest), where
    )


def _looped(facts: Facts) -> tuple[str, float, float]:
    """Updates in place outside of the passes and the optimizer: line, seconds of the card and of the host a step."""
    steps = facts.steps
    alone = [
        one
        for one in steps.operations
        if IN_PLACE.match(one.name) and one.kernels and one.above is None and not one.engine and one.sequence is None
        and not inside(steps.main.optimizer, one.begin)
    ]  # fmt: skip
    if len(alone) < 50 * steps.count:
        return "", 0.0, 0.0
    where = steps.top_line(alone, lambda one: 1.0)
    if steps.has_stacks:
        alone = facts.repeats(alone, 50).get(where, [])
    if not alone:
        return "", 0.0, 0.0
    begins = sorted((one.begin, one.end) for one in alone)
    apart = sum(min(after[0] - one[0], 60.0) for one, after in pairwise(begins))
    host = apart * steps.host_scale / SECOND / steps.count
    return where or "the program", sum(one.device for one in alone) / SECOND / steps.count, host


def optimizer_on_cpu(facts: Facts) -> Seen | None:
    """An optimizer whose arithmetic is the host's."""
    steps = facts.steps
    on_host = [
        one
        for one in steps.operations
        if not one.kernels
        and one.above is None
        and inside(steps.main.optimizer, one.begin)
        and one.end - one.begin > 20
    ]
    seconds = length(union((one.begin, one.end) for one in on_host)) / SECOND / steps.count
    if seconds < 0.05 * facts.whole or sum(one.part == "optimizer" for one in steps.kernels) > 20 * steps.count:
        return None
    copies = [one for one in steps.kernels if one.host_copy]
    size = sum(one.moved_bytes for one in copies) / steps.count
    if not any("DtoH" in one.name and one.moved_bytes >= LEAST_GRADIENT for one in copies):
        return None  # what it computes there are its own counters
    told = f"the optimizer computes on the host for {facts.share(seconds)}, and {size / GIB:.2f} GiB a step cross to and from it"
    floor = steps.computing_seconds
    least, most = 0.85 * (facts.whole - floor), facts.whole - floor
    whole = Budget(facts.whole, facts.budget.card, facts.budget.host)
    return Seen(told, towards(whole, facts.whole - least), towards(whole, facts.whole - most), step_line(facts))


def sparse_gradients(facts: Facts) -> Seen | None:
    """A gradient as large as its table, of which a batch touches little."""
    steps = facts.steps
    dense = [
        one
        for one in steps.operations
        if one.name in ("aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward")
    ]
    rows = [(one, _rows(one)) for one in dense]
    # The output layer of a language model is often the same tensor, and its gradient is dense.
    tied = {tuple(sorted(size[-2:])) for one in steps.operations for size in matrices(one)}
    waste = [
        (one, *pair)
        for one, pair in rows
        if pair is not None and pair[0] > 4 * pair[1] and tuple(sorted((pair[0], pair[2]))) not in tied
    ]
    if not waste:
        return None
    size = sum(count * width * 4 for _, count, _, width in waste) / steps.count
    bandwidth = (memory_gb_per_second(steps.card) or 2000.0) * 1e9
    wasteful = {one for one, *_ in waste}
    fills = steps.per_step(
        kernel
        for one in steps.operations
        if one.kernels and any(around in wasteful for around in one.outer())
        for kernel in one.kernels
    )
    optimizer = steps.per_step(facts.optimizer_kernels)
    floor = size / bandwidth
    if fills + optimizer < WORTH * facts.whole or 7 * floor < WORTH * facts.whole:
        return None
    of_table = min(optimizer, 7 * floor)  # reads gradient, weight and two moments, writes three
    one, count, used, width = max(waste, key=lambda item: item[1])
    told = (
        f"a batch of {used:,} keys makes a dense gradient for a table of {count:,} x {width:,}; filling it and walking all of it in the "
        f"optimizer take {facts.share(fills + optimizer)}"
    )
    return Seen(told, Saved(card=0.5 * of_table), Saved(card=0.97 * (fills + optimizer)), steps.line(one))


def _rows(operation: Operation) -> tuple[int, int, int] | None:
    """Rows of the table, keys of the batch, width."""
    wide = next((size for size in operation.sizes if len(size) >= 2), None)
    counts = [int(one) for one in operation.given if one.isdecimal() and len(one) < 12 and int(one) > 1]
    if wide is None or not counts:
        return None
    keys = max((prod(size) for size in operation.sizes if size and size != wide), default=prod(wide[:-1]))
    return max(counts), keys, wide[-1]
