"""Snapshots as Prometheus metrics. Names and units follow its conventions: base units, ``_total``, ``_ratio``, ``_info``."""

import sys
from collections.abc import Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily

from perfwatch import __version__
from perfwatch.exporters.snapshot import STEP_BUCKETS, Card, NodeSnapshot, Snapshot
from perfwatch.verdict import STATES

UNITS = ("seconds", "bytes", "watts", "ratio")  # of OpenMetrics: the last word of a name
REGIMES = ("work", "wait", "spin", "idle", "unknown")
_SHARES = (
    ("resident", "Share of time in which a kernel was resident, lately."),
    ("sm_active", "Share of the streaming multiprocessors that were active, lately."),
    ("tensor", "Share of time in which the tensor cores were active, lately."),
    ("dram", "Share of the memory bandwidth in use, lately."),
)


def families(snapshots: Iterable[Snapshot], node: NodeSnapshot | None = None) -> Iterator[Metric]:
    """Every metric of every job, each with the label ``session``, and of the node where a daemon watches it.

    A counter has all its series from the start, so that ``increase()`` sees the first event.
    """
    for family in _families(list(snapshots), node):
        family.unit = next((unit for unit in UNITS if family.name.endswith(f"_{unit}")), "")
        yield family


def _families(jobs: list[Snapshot], node: NodeSnapshot | None) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "perfwatch_build",
        "What serves these metrics.",
        {"version": __version__, "python": ".".join(map(str, sys.version_info[:3]))},
    )
    yield from _verdicts(jobs)
    yield from _steps(jobs)
    yield from _cards(jobs)
    yield from _costs(jobs)
    if node is not None:
        yield GaugeMetricFamily("perfwatch_watched_jobs", "Jobs that the daemon watches.", value=node.watched)
        yield CounterMetricFamily("perfwatch_adopted_jobs", "Jobs that it has adopted so far.", value=node.adopted)
        yield GaugeMetricFamily("perfwatch_recorded_bytes", "What all its recordings take.", value=node.recorded_bytes)


def _verdicts(jobs: list[Snapshot]) -> Iterator[Metric]:
    info = InfoMetricFamily("perfwatch_job", "The watched job.", labels=["session"])
    state = GaugeMetricFamily(
        "perfwatch_state", "1 for the state that was reported last, 0 for the others.", labels=["session", "state"]
    )
    verdict = GaugeMetricFamily(
        "perfwatch_verdict",
        "1 for the verdict that was reported last, with what may be done about it.",
        labels=["session", "state", "cause", "owner", "action"],
    )
    sure = GaugeMetricFamily("perfwatch_verdict_confidence_ratio", "How sure the verdict is.", labels=["session"])
    judged = GaugeMetricFamily(
        "perfwatch_verdict_timestamp_seconds", "When it was made, unix time.", labels=["session"]
    )
    silent = GaugeMetricFamily(
        "perfwatch_silent_since_timestamp_seconds", "Since when nothing moves, unix time.", labels=["session"]
    )
    suspected = GaugeMetricFamily(
        "perfwatch_suspected", "1 for a cause whose hang timeout still runs.", labels=["session", "cause"]
    )
    told = CounterMetricFamily("perfwatch_verdicts", "Verdicts reported, by state.", labels=["session", "state"])
    for job in jobs:
        info.add_metric(
            [job.session],
            {"mode": job.mode, "root_pid": str(job.root_pid)}
            | job.job
            | ({"command": job.command} if job.command else {}),
        )
        for name in STATES if job.state else ():
            state.add_metric([job.session, name], float(name == job.state))
        if job.state:
            verdict.add_metric([job.session, job.state, job.cause, job.owner, job.action], 1.0)
        for family, value in ((sure, job.confidence), (judged, job.judged), (silent, job.silent_since)):
            if value is not None:
                family.add_metric([job.session], value)
        if job.suspected:
            suspected.add_metric([job.session, job.suspected], 1.0)
        for name in STATES:
            told.add_metric([job.session, name], job.told.get(name, 0))
    yield from (info, state, verdict, sure, judged, silent, suspected, told)


def _steps(jobs: list[Snapshot]) -> Iterator[Metric]:
    counted = CounterMetricFamily(
        "perfwatch_steps", "Optimizer steps counted in a process.", labels=["session", "rank"]
    )
    times = HistogramMetricFamily(
        "perfwatch_step_duration_seconds", "Time between two steps, of all ranks.", labels=["session"]
    )
    wanted = GaugeMetricFamily(
        "perfwatch_job_steps", "Steps that the job is to make, as it says ($PERFWATCH_STEPS).", labels=["session"]
    )
    limit = GaugeMetricFamily(
        "perfwatch_job_limit_timestamp_seconds", "When Slurm ends the job at the latest, unix time.", labels=["session"]
    )
    for job in jobs:
        for family, value in ((wanted, job.steps_wanted), (limit, job.ends_by)):
            if value is not None:
                family.add_metric([job.session], value)
        for rank in job.ranks:
            counted.add_metric([job.session, rank.rank], rank.steps)
        if job.step_buckets:
            total, buckets = 0, []
            for bound, count in zip((*map(str, STEP_BUCKETS), "+Inf"), job.step_buckets, strict=True):
                total += count
                buckets.append((bound, float(total)))
            times.add_metric([job.session], buckets, job.step_seconds)
    yield from (counted, times, wanted, limit)


def _cards(jobs: list[Snapshot]) -> Iterator[Metric]:
    labels = ["session", "gpu", "uuid"]
    regime = GaugeMetricFamily(
        "perfwatch_gpu_regime",
        "1 for what the card does: work, wait for the host, spin, idle.",
        labels=[*labels, "regime"],
    )
    sizes = {
        "memory_used_bytes": GaugeMetricFamily("perfwatch_gpu_memory_used_bytes", "Memory in use.", labels=labels),
        "memory_bytes": GaugeMetricFamily("perfwatch_gpu_memory_bytes", "Memory that the card has.", labels=labels),
    }
    power = GaugeMetricFamily("perfwatch_gpu_power_watts", "Power, lately.", labels=labels)
    shares = {name: GaugeMetricFamily(f"perfwatch_gpu_{name}_ratio", text, labels=labels) for name, text in _SHARES}
    for job in jobs:
        for card in job.cards:
            named = [job.session, card.gpu, card.uuid]
            for name in REGIMES:
                regime.add_metric([*named, name], float(name == card.regime))
            for name, family in (shares | sizes).items():
                _add(family, named, card, name)
            _add(power, named, card, "power_watts")
    yield from (regime, *shares.values(), *sizes.values(), power)


def _add(family: GaugeMetricFamily, labels: list[str], card: Card, name: str) -> None:
    """Missing is not zero: what the card does not tell has no sample."""
    value = getattr(card, name)
    if value is not None:
        family.add_metric(labels, value)


def _costs(jobs: list[Snapshot]) -> Iterator[Metric]:
    looked = GaugeMetricFamily(
        "perfwatch_last_look_timestamp_seconds", "When the watch last looked, unix time.", labels=["session"]
    )
    seconds = CounterMetricFamily(
        "perfwatch_own_cpu_seconds", "CPU time of this watch and its helpers.", labels=["session"]
    )
    memory = GaugeMetricFamily(
        "perfwatch_own_resident_memory_bytes", "Resident memory of this watch and its helpers.", labels=["session"]
    )
    lost = CounterMetricFamily(
        "perfwatch_recording_lost_lines", "Lines that the disk did not take.", labels=["session"]
    )
    posts = CounterMetricFamily("perfwatch_notifications", "Changes for the webhook.", labels=["session", "outcome"])
    for job in jobs:
        looked.add_metric([job.session], job.looked)
        seconds.add_metric([job.session], job.own_cpu_seconds)
        memory.add_metric([job.session], job.own_memory_bytes)
        lost.add_metric([job.session], job.lost_lines)
        posts.add_metric([job.session, "posted"], job.posted)
        posts.add_metric([job.session, "failed"], job.not_posted)
    yield from (looked, seconds, memory, lost, posts)
