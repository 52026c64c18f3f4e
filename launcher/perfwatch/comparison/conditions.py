"""The conditions of a run (hardware, versions, settings) as far as the recording has them, and where two runs differ."""

from collections import Counter

import msgspec

from perfwatch.comparison.bootstrap import Windows
from perfwatch.recording.session import Session
from perfwatch.triage.case import Case
from perfwatch.triage.questions import cards_of
from perfwatch_probes import readings as r

SAME_CLOCK = 0.03  # a card's clock wanders by so much with its temperature
MOST_WORDS = 8
# What the session says of itself or of the watching, not of the run.
_OURS = frozenset({"patience_seconds", "apart_seconds"})
# Differences that explain no step time, and are said without alarm.
_HARMLESS = frozenset({"host", "kernel", "perfwatch", "watched by"})
_TOLD_WHERE_THERE = frozenset({"GPUs", "loader workers", "CPU quota", "OMP_NUM_THREADS", "CUDA_LAUNCH_BLOCKING"})


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One thing in which two runs differ; empty text: not known. matters: the step times may differ for this alone."""

    name: str
    a: str
    b: str
    matters: bool


def conditions(case: Case, clock: Windows | None) -> dict[str, str]:
    """Name and value of everything that is known; ``clock``: the SM clock while it trained, in MHz."""
    session, history = case.session, case.history
    ranks = list(case.job.ranks)
    cgroups = [seen.reading for key in history.entities(r.Cgroup) if (seen := history.latest(r.Cgroup, *key))]
    quotas = {f"{one.quota_cpus:g} CPUs" for one in cgroups if one.quota_cpus is not None}
    workers = {len([w for w in case.job.workers(rank.pid) if w.alive]) for rank in ranks}
    facts: dict[str, str | int | float | None] = {
        "host": session.machine.name,
        "kernel": session.machine.kernel,
        "perfwatch": session.version,
        "watched by": session.mode,
        "architecture": session.machine.architecture,
        "CPUs": session.machine.cpus,
        "memory": f"{session.machine.memory_bytes / 2**30:.0f} GiB" if session.machine.memory_bytes else None,
        "world size": case.job.world_size or len(ranks) or None,
        "CPU quota": ", ".join(sorted(quotas)) or None,
        "loader workers": max(workers, default=0) or None,
        **_software(case),
        **_gpus(case),
        "SM clock": None if clock is None or clock.value is None else f"{clock.value:.0f} MHz",
        **{name.replace("_", " "): value for name, value in session.conditions.items() if name not in _OURS},
        **_environment(case),
    }
    return {name: str(value) for name, value in facts.items() if value is not None}


def differences(a: dict[str, str], b: dict[str, str]) -> tuple[Condition, ...]:
    """What is not the same, what matters first."""
    found = [
        Condition(name=name, a=a.get(name, ""), b=b.get(name, ""), matters=_matters(name, name in a and name in b))
        for name in dict.fromkeys((*a, *b))
        if a.get(name) != b.get(name) and not (name == "SM clock" and _alike(a.get(name), b.get(name)))
    ]
    return tuple(sorted(found, key=lambda one: not one.matters))


def _matters(name: str, known: bool) -> bool:
    """What one of the runs does not tell may be the same; these are told wherever they are there."""
    return name not in _HARMLESS and (known or name in _TOLD_WHERE_THERE)


def command_difference(a: Session, b: Session) -> tuple[Condition, ...]:
    """The words in which the command lines differ: a batch size, a model, another program."""
    words_a, words_b = Counter(a.command), Counter(b.command)
    if words_a == words_b:
        return ()
    only = ([word for word in command if word in (mine - others)] for command, mine, others in (
        (a.command, words_a, words_b), (b.command, words_b, words_a),
    ))  # fmt: skip
    text_a, text_b = (" ".join(words[:MOST_WORDS]) + (" ..." if len(words) > MOST_WORDS else "") for words in only)
    return (Condition(name="command line", a=text_a, b=text_b, matters=True),)


def _alike(a: str | None, b: str | None) -> bool:
    if a is None or b is None:
        return True  # a card of which the clock was not read is no other card
    clock_a, clock_b = float(a.split()[0]), float(b.split()[0])
    return abs(clock_a - clock_b) <= SAME_CLOCK * max(clock_a, clock_b)


def _software(case: Case) -> dict[str, str]:
    for key in case.history.entities(r.Software)[:1]:
        seen = case.history.latest(r.Software, *key)
        if seen is not None:
            said = {name: getattr(seen.reading, name) for name in ("torch", "cuda", "nccl", "python")}
            return {name: version for name, version in said.items() if version is not None}
    return {}


def _gpus(case: Case) -> dict[str, str]:
    used = list(dict.fromkeys(uuid for rank in case.job.ranks for uuid in cards_of(case.history, rank.pid).uuids))
    cards = [seen.reading for uuid in used if (seen := case.history.latest(r.Gpu, uuid)) is not None]
    if not cards:
        return {}
    names = Counter(card.name for card in cards)
    said = {
        "GPUs": [f"{count} x {name}" for name, count in sorted(names.items())],
        "GPU driver": [card.driver_version for card in cards],
        "GPU power limit": [f"{card.power_limit_watts:.0f} W" for card in cards if card.power_limit_watts],
        "highest SM clock": [f"{card.sm_clock_max_mhz} MHz" for card in cards if card.sm_clock_max_mhz],
    }
    return {name: ", ".join(sorted(set(values))) for name, values in said.items() if any(values)}


# Where the ranks are and how they, or perfwatch, find each other differs from run to run and tells nothing.
_PLACES = frozenset(
    "MASTER_ADDR MASTER_PORT RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK ROLE_RANK NCCL_RAS_ADDR PERFWATCH_AGENT_DIR".split()
)
_KINETO = ("KINETO_IPC_SOCKET_DIR", "KINETO_CONFIG")  # of ``run`` where the second lies in the first
_PLACED = ("SLURM_", "TORCHELASTIC_", "OMPI_", "PMI", "HOSTNAME")


def _environment(case: Case) -> dict[str, str]:
    for rank in case.job.ranks[:1]:
        recorded = rank.process.environment
        folder, config = (recorded.get(name, "") for name in _KINETO)
        ours = _PLACES.union(_KINETO if config == f"{folder}/config" else ())
        return {name: v for name, v in recorded.items() if name not in ours and not name.startswith(_PLACED)}
    return {}
