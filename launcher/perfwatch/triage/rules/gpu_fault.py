"""The GPU failed, and the job ended with it."""

from perfwatch.failures import forms
from perfwatch.triage.cards.whose import index_of, lost_cards, name_of
from perfwatch.triage.cards.xids import CONSEQUENCES, CORRECTED, PROGRAM, Announced, announced, of_job, used_cards
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import LOOKS_APART_SECONDS, ended_at, ended_well, ending, traceback_of
from perfwatch.triage.rule import Cause, Rule
from perfwatch.verdict import Alternative, Culprit, Evidence, Finding, Outcome
from perfwatch_probes.readings import GpuErrors, ProcessEnded

CAUSE = Cause("gpu_fault", "gone", "gpu", (ProcessEnded,), also=forms("gpu_fault"))

TWO_WORDS = 0.96  # the driver's, and a counter or the program's own last words
ONE_WORD = 0.9
SOON_SECONDS = (
    60.0  # a fault of the program's own kernel is raised at its next call that waits for the card: within a step
)
LATE_SECONDS = (
    900.0  # the ranks that wait for one whose card broke give up after NCCL's timeout, 600 s, and write their dumps
)
CUDA_WORDS = ("CUDA error", "CUDA driver error", "cudaError", "AcceleratorError", "uncorrectable", "ECC")


def judge(case: Case) -> Outcome:
    """Fires when the job is gone and the driver announced why."""
    end = ending(case)
    if end is None or ended_well(case, end):
        return None
    ended = ended_at(case, end)
    fatal = _fatal(case, ended)
    counted = _counted(case, ended)
    if not fatal and not counted:
        return None
    words = traceback_of(case)
    said = words is not None and any(word in words.text for word in CUDA_WORDS)
    if words is not None and not said and not any(one.kind != PROGRAM for one in fatal):
        return None  # the program ended by an exception that has nothing to do with a card
    evidence = (*(_event(case, one) for one in fatal), *counted)
    if said and words is not None:
        evidence += (
            case.saw("traceback", f"pid {words.pid}", "ended by a CUDA error", words.exception, "no exception"),
        )
    program = bool(fatal) and all(one.kind == PROGRAM for one in fatal)
    what = fatal[0].shown() if fatal else evidence[0].claim
    card = fatal[0].card if fatal else evidence[0].entity
    return Finding(
        cause=CAUSE.name,
        state="gone",
        summary=f"{name_of(case.history, card)} failed: {what}"
        + (", which is mostly a kernel of the program itself" if program else ""),
        confidence=TWO_WORDS if len({one.witness for one in evidence}) > 1 else ONE_WORD,
        owner="user_code" if program else CAUSE.owner,
        culprits=(Culprit(pid=end.pid, rank=case.job.rank_of(end.pid), gpu=index_of(case.history, card)),),
        evidence=evidence,
        alternatives=(Alternative(cause="crashed", refuted_by="the driver itself announced the error"),),
        next=(
            ("compute-sanitizer python ... names the kernel and the address",)
            if program
            else ("drain the node; nvidia-smi -q -d ECC,ROW_REMAPPER; reset or replace the card",)
        ),
    )


def _fatal(case: Case, ended: float) -> list[Announced]:
    """What was announced on the job's cards when it ended, each number once for a card."""
    found: dict[tuple[int, str], Announced] = {}
    for one in announced(case):
        since = ended - (SOON_SECONDS if one.kind == PROGRAM else LATE_SECONDS)
        ends_jobs = one.kind != CORRECTED and one.xid not in CONSEQUENCES
        if ends_jobs and since <= one.at <= ended + LOOKS_APART_SECONDS and of_job(case, one):
            found.setdefault((one.xid, one.card), one)
    return list(found.values())


def _event(case: Case, one: Announced) -> Evidence:
    return case.saw(
        one.source, name_of(case.history, one.card), "the driver announced an error", one.shown(), "none", one.at
    )


def _counted(case: Case, ended: float) -> tuple[Evidence, ...]:
    found, used, seconds = [], used_cards(case), case.at - ended + LATE_SECONDS
    for (uuid,) in case.history.entities(GpuErrors):
        if used is not None and uuid not in used:
            continue
        grown = case.history.growth(GpuErrors, uuid, of=lambda e: e.uncorrected, seconds=seconds)
        if grown is not None and grown[0] > 0:
            found.append(case.saw("ecc", uuid, "uncorrectable memory errors", f"+{grown[0]:.0f}", "+0"))
    for seen in lost_cards(case.history):
        uuid = seen.reading.uuid
        if used is not None and uuid not in used:
            continue
        found.append(case.saw("nvml", uuid, "the driver no longer reaches the card", "lost", "answers", seen.at))
    return tuple(found)


RULES = (Rule(CAUSE, judge),)
