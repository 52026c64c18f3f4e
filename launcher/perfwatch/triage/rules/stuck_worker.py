"""A worker process that the training thread waits for does not move."""

from perfwatch.triage.case import Case
from perfwatch.triage.graph.thresholds import COUNTS_TIMES
from perfwatch.triage.hang import hung, look_at, who, with_loop
from perfwatch.triage.moving.loops import loop_of
from perfwatch.triage.moving.work import moves_data
from perfwatch.triage.patience import STRUCTURAL_SECONDS, outlasts, temporal, wakes_soon
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.waits import batches
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.locks import takes_again
from perfwatch.triage.waits.node import NATIVE_WAIT, silence
from perfwatch.triage.waits.threads import OTHERS_MOVE
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Evidence, Outcome
from perfwatch_probes.readings import Stack, Thread

CAUSE = Cause("stuck_worker", "hung", "data", (Thread, Stack))

# Ends that are the worker's own doing; any other end has a rule of its own.
OWN_ENDS = ("sleep", "lock", "python", "native", "gil", "cycle", NATIVE_WAIT, "other", "unknown")
RUNNING_ENDS = ("python", "native")
NAPPING = 2.0  # times the patience, for workers that look again and again whether something has come
GONE_WILD = 0.5  # of it, in one call of a regular expression that has cost more than all that the other workers did
CEILING_GUESSED = 0.78  # no stack; in a loop that waits for no condition; or in native code, for whom is not known
CEILING_UNSEEN = 0.7  # what it waits for could not be read
CEILING_RUNNING = 0.88  # an endless loop and a very long computation look the same from outside


def judge(case: Case) -> Outcome:
    """Fires on a chain that went through a queue of workers and ends in one that does not move."""
    for chain in case.still_chains:
        end = chain.end
        if batches.through_a_queue(case, chain) and batches.all_nap(case, chain):
            return _napping(case, chain)
        if not batches.through_a_queue(case, chain) or end.kind not in OWN_ENDS or wakes_soon(case, end):
            continue
        unseen = end.node.stack is None and not batches.told_without_a_stack(case, chain)
        if unseen or (end.node.pid, end.node.tid) == (chain.start.pid, chain.start.tid):
            continue
        if end.kind == "cycle" and {link.pid for link in chain.links} == {chain.start.pid}:
            continue  # threads of one pool that wait for each other: no worker process is to blame
        if end.still or end.kind in RUNNING_ENDS:
            return _finding(case, chain)
    return None


def _napping(case: Case, chain: Chain) -> Outcome:
    silent = silence(case.history, chain.start) or 0.0
    return hung(
        case,
        CAUSE.name,
        chain,
        owner=CAUSE.owner,
        summary=f"{who(chain)} sleeps and asks again and again; for {silent:.0f} s nothing has come of it and the training thread waits",
        patience=NAPPING * temporal(case),
        silent=silent,
        evidence=(batches.given_nothing(case, chain, silent),),
        ceiling=CEILING_GUESSED,
        alternatives=(Alternative(cause="starved_by_transforms", refuted_by="no batch was delivered meanwhile"),),
        next=look_at(chain.end.node.frame),
    )


def _finding(case: Case, chain: Chain) -> Outcome:
    end = chain.end
    running = end.kind in RUNNING_ENDS
    certain = (end.kind in ("lock", "gil", "cycle") and end.detail != OTHERS_MOVE) or outlasts(case, end)
    silent = end.silent_seconds or 0.0
    evidence: tuple[Evidence, ...] = ()
    patience = STRUCTURAL_SECONDS if certain and end.node.stack is not None else temporal(case)
    doubtful = end.node.stack is None or (end.kind == "lock" and end.detail == OTHERS_MOVE)
    told = CEILING_GUESSED if doubtful else 1.0
    ceiling, wild = {"unknown": CEILING_UNSEEN, NATIVE_WAIT: CEILING_GUESSED}.get(end.kind, told), False
    if running:
        silent, evidence = batches.without_a_batch(case, chain)
        loop = loop_of(case.history, end.node)
        fills = moves_data(case.history, end.node)
        ceiling = CEILING_RUNNING if loop.may_turn_for_ever and not fills else CEILING_GUESSED
        beyond = batches.outspends(case, chain) if (wild := loop.expression) else ()
        evidence, patience = (*evidence, *beyond), patience * (GONE_WILD if beyond else 1.0)
        if fills and not wild and not loop.may_turn_for_ever:
            return None  # data come to an end: a stream that skips to where a run had stopped, a buffer that fills
        counts = end.kind == "native" or fills or (loop.counts and not wild)
        patience *= COUNTS_TIMES if counts else 1.0
        if counts and silent < patience:
            return None  # long work, until proved otherwise
    said = f"{who(chain)} runs without delivering anything" if running else batches.all_wait(chain)
    if not running and (frame := takes_again(case.history, end.node)):
        said = f"{who(chain)} waits for a lock that it has taken itself at {show(frame)}"
    found = hung(
        case,
        CAUSE.name,
        chain,
        owner=CAUSE.owner,
        summary=f"{said}; for {silent:.0f} s nothing has come of it and the training thread waits",
        patience=patience,
        silent=silent,
        evidence=evidence,
        ceiling=ceiling,
        alternatives=(
            Alternative(
                cause="starved_by_transforms",
                refuted_by="no batch was delivered within the patience"
                if running
                else "the worker's stack, io and run time are flat",
            ),
            Alternative(cause="dead_worker", refuted_by=f"process {end.node.pid} is alive"),
        ),
        next=(
            f"py-spy dump --nonblocking --pid {end.node.pid}",
            *batches.way_out(case, chain),
        ),
    )
    return with_loop(found, end.node, loop.frame) if running and not wild else found


RULES = (Rule(CAUSE, judge),)
