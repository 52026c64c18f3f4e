"""The job ran out of memory."""

import re

from perfwatch.failures import forms
from perfwatch.triage.cards.whose import index_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import ending, traceback_of
from perfwatch.triage.ends.oom_victims import blamed, counted, followed, logged, told, victims
from perfwatch.triage.rule import Cause, Rule
from perfwatch.verdict import Alternative, Culprit, Evidence, Finding, Outcome
from perfwatch_probes.readings import Gpu, GpuSample, ProcessEnded

CAUSE = Cause("out_of_memory", "gone", "user_code", (ProcessEnded,), also=forms("out_of_memory"))

SURE = 0.96
DEVICE_WORDS = ("CUDA out of memory", "HIP out of memory")
ASKED = re.compile(r"Tried to allocate (?P<size>[\d.]+ \w+)")
OOM_WORDS = ("OutOfMemoryError", "MemoryError", "CUDA out of memory", "DefaultCPUAllocator: can't allocate memory")


def judge(case: Case) -> Outcome:
    """Fires when a member of the job ended and an OOM witness speaks of it."""
    end = ending(case)
    evidence = _witnesses(case, end) if end is not None else ()
    if not evidence or end is None:
        return None
    words = traceback_of(case)
    if words is not None and any(word in words.text for word in DEVICE_WORDS):
        return _on_device(case, end.pid, words.text, evidence)
    killed = victims(case, end)
    return Finding(
        cause=CAUSE.name,
        state="gone",
        summary=told(case, killed, end),
        confidence=SURE,
        owner=CAUSE.owner,
        culprits=tuple(blamed(case, pid, end) for pid in killed),
        evidence=(*evidence, *(followed(case, killed) if killed != (end.pid,) else ())),
        alternatives=(Alternative(cause="killed", refuted_by="an out-of-memory witness names this job"),),
        next=("fewer workers, smaller batches, or a larger memory limit",),
    )


def _on_device(case: Case, pid: int, words: str, evidence: tuple[Evidence, ...]) -> Finding:
    """The allocator of the device refused: what was asked for, and how full the card was."""
    asked = ASKED.search(words)
    fullest = max(
        (
            (seen.reading.memory_used_bytes or 0, key[0])
            for key in case.history.entities(GpuSample)
            for seen in case.history.series(GpuSample, *key)
        ),
        default=(0, ""),
    )
    card = case.history.latest(Gpu, fullest[1])
    total = card.reading.memory_bytes if card is not None else None
    held = f"{fullest[0] / 2**30:.1f} GiB" + (f" of {total / 2**30:.1f}" if total else "")
    seen = (case.saw("nvml", name_of(case.history, fullest[1]), "most memory seen in use", held),) if fullest[0] else ()
    return Finding(
        cause=CAUSE.name,
        state="gone",
        summary=f"pid {pid} ran out of GPU memory"
        + (f": it asked for {asked['size']} at once" if asked else "")
        + (f"; the card was seen holding {held}" if fullest[0] else ""),
        confidence=SURE,
        owner=CAUSE.owner,
        culprits=(Culprit(pid=pid, rank=case.job.rank_of(pid), gpu=index_of(case.history, fullest[1])),),
        evidence=(*evidence, *seen),
        alternatives=(Alternative(cause="gpu_fault", refuted_by="the allocator refused, the card is well"),),
        next=(
            "a smaller micro-batch with gradient accumulation, or activation checkpointing; "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True where fragments are the reason",
        ),
    )


def _witnesses(case: Case, end: ProcessEnded) -> tuple[Evidence, ...]:
    found = [
        case.saw("cgroup", path, "the kernel killed for memory here", f"oom_kill +{kills}", "+0")
        for path, kills in counted(case, end).items()
    ]
    for seen in logged(case, end):
        found.append(
            case.saw("kernel_log", f"pid {seen.reading.pid}", "OOM kill", seen.reading.text[:160], "none", seen.at)
        )
    words = traceback_of(case)
    if words is not None and any(word in words.text for word in OOM_WORDS):
        found.append(
            case.saw(
                "traceback", f"pid {words.pid}", "out of memory", words.exception or "out of memory", "no exception"
            )
        )
    return tuple(found)


RULES = (Rule(CAUSE, judge),)
