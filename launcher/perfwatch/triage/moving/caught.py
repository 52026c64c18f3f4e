"""A training thread that is caught in a loop: of one module's forward, of one batch's fetch, around passes, or outside of training."""

import re

from perfwatch.text import duration
from perfwatch.triage.cards.gpu import regime, regimes
from perfwatch.triage.case import Case
from perfwatch.triage.graph.thresholds import COUNTS_TIMES
from perfwatch.triage.hang import hung, look_at, who, with_loop
from perfwatch.triage.history import History
from perfwatch.triage.independence import ONE_SOURCE
from perfwatch.triage.moving.loops import loop_of, rereads
from perfwatch.triage.moving.memory import GUESSED, has_come_back, lull
from perfwatch.triage.moving.motion import stacks_of, was_at
from perfwatch.triage.moving.thresholds import LOOP_SECONDS
from perfwatch.triage.moving.unleft import Unleft
from perfwatch.triage.moving.within import FETCH, UPDATE, Anew, Within
from perfwatch.triage.moving.work import moves_data, releases_gil
from perfwatch.triage.patience import temporal
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.profile import profile
from perfwatch.triage.shares.startup import UNSURE, goes_through_rounds, prepares
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import End, Node
from perfwatch.triage.words.code import TRAINS, line_of, names
from perfwatch.triage.words.frames import show, user_frames
from perfwatch.verdict import Culprit, Evidence, Outcome
from perfwatch_probes.readings import Thread

# A parameter that is taken down its gradient by the program itself: ``w -= rate * gradient``; a counter goes down by one number.
DESCENDS = re.compile(r"^[\w.\[\]]+ -= .*\*|\.sub_\(.*(?:\*|\balpha=)|\.add_\(.*\balpha=-")
COUNTED = 0.88  # steps are counted, and none came
INFERRED = 0.88  # a long finite computation cannot be told apart by anything but time
ROUNDS = 0.65  # each is known to end, and no training was ever seen that could stand still
UNTESTED = 0.55  # an optimizer that was never seen to come out of its loop may do all of the training in one step
READS_AGAIN = "reads a file again and again, and what it waits for is not there"
UNENDED = 0.7  # an evaluation of another kind, with far more to do than those before, looks the same
# Starts of a loader that were sampled. A step takes longer than such a start, so steps between them would be missed with e**-4.
STARTS_SEEN = 4
MANY_SAMPLES = 300  # a pass that is left for 1 % of the time would have shown it
# A fetch asks for one item after the other, and each may turn in the same loop: it is left for a thousandth of the time.
MANY_OF_A_FETCH = 3000


def at_work(case: Case, end: End) -> bool:
    """Whether a thread waits for a card that serves it: it is let go on, if only to ask again in the next turn of its loop."""
    card = regime(case.history, end.detail) if end.kind == "gpu" else None
    return card is not None and card.kind in ("work", "wait") and not card.polls


def caught(case: Case, cause: Cause, chain: Chain, within: Within) -> Outcome:
    """It runs in training code, and never comes out of one loop there."""
    steps = case.progress[chain.start.pid].steps
    counted = steps is not None and steps.ago_seconds is not None and steps.longest_seconds is not None
    known = counted or within.usual_seconds > 0.0  # how long it takes here, by what was seen before
    fetches = within.called == FETCH and not known
    computes = releases_gil(case.history, chain.start) or computes_on_card(case, chain.start.pid)
    takes_its_time = fetches or moves_data(case.history, chain.start) or (computes and not known)
    patience = max(temporal(case) * (COUNTS_TIMES if takes_its_time else 1.0), within.usual_seconds)
    sure = COUNTED if counted else GUESSED
    if within.called == UPDATE and not within.usual_seconds:
        sure = UNTESTED
    enough = within.read and within.samples >= (MANY_OF_A_FETCH if fetches else MANY_SAMPLES)
    stays, sampled = f"stays in one loop of one {within.called}", f"{within.samples} samples, all of that loop"
    found = hung(
        case,
        cause,
        chain,
        summary=f"{who(chain)} does not come out of its loop, within one {within.called}",
        patience=patience,
        silent=within.seconds,
        evidence=_stays(case, chain, stays, sampled, "other parts of a step in between", "steps"),
        ceiling=sure if enough else ONE_SOURCE,
        but={"evaluating": "no other part of the model, no other batch was seen"},
        next=look_at(within.frame),
    )
    return with_loop(found, chain.start, within.frame)


def _stays(case: Case, chain: Chain, stays: str, sampled: str, expected: str, come: str) -> tuple[Evidence, Evidence]:
    """What shows that a running thread stays in its loop; ``come``: what would come in a run that goes on."""
    pid = f"pid {chain.start.pid}"
    served = "is served by its card" if at_work(case, chain.end) else "waits for no other task"
    runs = f"{chain.start.motion.run_share or 0.0:.0%} of a core"
    return (
        case.saw("stack", pid, stays, sampled, expected),
        case.saw("schedstat", pid, served, runs, f"the same, and {come} come"),
    )


def gets_no_batch(case: Case, cause: Cause, chain: Chain, anew: Anew) -> Outcome:
    """It starts its loader again and again, and no batch comes out of it."""
    begun, start = f"{anew.times} or more times since the last pass", chain.start
    return hung(
        case,
        cause,
        chain,
        summary=f"the loop at {show(anew.frame)} starts its loader again and again, and gets no batch",
        patience=temporal(case),
        silent=anew.seconds,
        evidence=_stays(
            case, chain, "comes to the end of its loader, and starts it again", begun, "batches", "batches"
        ),
        ceiling=GUESSED if anew.times >= STARTS_SEEN and not anew.by_workers else ONE_SOURCE,
        but={"serial_loading": "the data set ends, and gives no batch", "computing_on_host": "the data set ends"},
        next=(f"look at what {show(start.frame)} leaves out: does any sample pass?",),
        culprits=(Culprit(pid=start.pid, rank=start.rank, tid=start.tid, frame=show(anew.frame)),),
    )


def never_left(case: Case, cause: Cause, chain: Chain, loop: Unleft) -> Outcome:
    """It makes forward passes in one loop that waits for a condition, for longer than an evaluation is given."""
    steps, before = case.progress[chain.start.pid].steps, loop.usual_seconds
    ended = "it ends" if before is None else f"out of it within {duration(before)}, when it was there before"
    sure = before is not None and loop.samples >= MANY_OF_A_FETCH
    updates = "backward" if steps is None else f"backward after step {steps.count}"
    sampled = f"{loop.samples} samples over {duration(loop.seconds)}, none outside of it, none in {updates}"
    return hung(
        case,
        cause,
        chain,
        summary=f"it makes forward passes alone and has not left its loop at {show(loop.frame)} for {duration(loop.seconds)}",
        patience=loop.told_seconds,
        silent=loop.seconds,
        evidence=_stays(case, chain, f"stays in its while loop at {show(loop.frame)}", sampled, ended, "updates"),
        ceiling=UNENDED if sure else ONE_SOURCE,
        but={"evaluating": "time alone: no evaluation was seen to take so long"},
        next=look_at(loop.frame),
    )


def turns_for_ever(case: Case, cause: Cause, chain: Chain, watched: float) -> Outcome:
    """It runs Python outside of training code. ``watched``: for how many seconds that has been so."""
    rank, steps = case.job.members[chain.start.pid], case.progress[chain.start.pid].steps
    loop = loop_of(case.history, chain.end.node)
    again, waits = rereads(case.history, chain.end.node), loop.may_turn_for_ever
    over_data = moves_data(case.history, chain.end.node) and not again
    if over_data and not waits:
        return None  # data come to an end
    told = bool(loop.kinds) or len(case.ranks) > 1  # of several ranks one computes for all, and mostly in a library
    computes = not again and (releases_gil(case.history, chain.end.node) or computes_on_card(case, chain.start.pid))
    rounds = goes_through_rounds(case, rank)
    counts = (
        over_data
        or computes
        or rounds
        or loop.library is not None
        or (told and not waits)
        or case.awaited_at_start(chain.start.pid)
    )
    patience = temporal(case) * (COUNTS_TIMES if counts else 1.0)
    lasts = lull(case, rank, watched, patience)
    silent = lasts.seconds if steps is None or steps.ago_seconds is None else steps.ago_seconds
    if counts and silent < patience and not (waits and (computes or rounds)):
        return None  # a loop over something comes to its end: long work until proved otherwise
    node = chain.end.node
    if has_come_back(case, rank, silent) or trains_around(case.history, node):
        return None
    by_hand = descends(case.history, node)
    sure = UNSURE if prepares(case, rank) else ROUNDS if rounds or by_hand else GUESSED
    if waits and not (over_data or computes or rounds or by_hand or loop.tests_only or again):
        sure = INFERRED
    found = hung(
        case,
        cause,
        chain,
        summary=f"{who(chain)} {READS_AGAIN if again else 'runs Python and makes no step'}",
        patience=patience,
        silent=silent,
        evidence=(*lasts.evidence, *gets_nowhere(case, chain.start)),
        ceiling=min(lasts.ceiling, sure),
        but={"computing_on_host": "time alone: longer than the hang timeout"},
        next=look_at(chain.end.node.frame),
    )
    return with_loop(found, chain.end.node, loop.frame)


def trains_around(history: History, node: Node) -> bool:
    """True if its line is in a loop that trains, or collects garbage: a long call returns, and samples miss a brief step."""
    source = line_of(history, node.frame)
    return source is not None and ("collect" in names(source.calls) or names(source.loop_calls) >= TRAINS)


def descends(history: History, node: Node) -> bool:
    """True if a line of its loop makes an update by itself, in a run that was never seen at torch's own.

    It may be training, or a search that does not converge.
    """
    if was_at(history, node.pid, node.tid, "backward", "optimizer"):
        return False
    sights = (seen.reading for seen in stacks_of(history, node.pid, node.tid, LOOP_SECONDS))
    known = (line_of(history, frame) for frame in {frame for stack in sights for frame in user_frames(stack)})
    return any(line is not None and bool(line.loops) and DESCENDS.search(line.text) is not None for line in known)


def gets_nowhere(case: Case, node: Node) -> tuple[Evidence, ...]:
    """What shows that a running thread makes no progress: no training code among its samples, no I/O of its own."""
    seen = profile(case.history, node.pid, node.tid, seconds=LOOP_SECONDS)
    stays = case.saw(
        "stack",
        f"pid {node.pid}",
        "stays in the program's own code",
        f"{seen.samples} samples below {show(node.frame)}, none in training code",
        "backward and optimizer in each step",
    )
    entity = f"pid {node.pid} thread {node.tid}"
    if rereads(case.history, node):
        written = case.history.rate(Thread, node.pid, node.tid, of=lambda one: one.written_chars, seconds=LOOP_SECONDS)
        only_reads = case.saw(
            "io", entity, "only reads, the same in each turn", "0 bytes written", "writes now and then"
        )
        return (stays, only_reads) if written == 0.0 else (stays,)
    if node.motion.io_calls != 0:
        return (stays,)
    return stays, case.saw("io", entity, "does no io", "0 calls", "reads or writes now and then", node.thread_at)


def computes_on_card(case: Case, pid: int) -> bool:
    """True if a card of the process has work all the time: what is computed there may take long."""
    return any(card.kind == "work" for card in regimes(case.history, pid))
