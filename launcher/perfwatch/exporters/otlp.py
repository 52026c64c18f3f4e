"""Snapshots as OpenTelemetry metrics: the body of one OTLP/HTTP request in JSON. Pure.

OTLP's JSON is short enough to be written here: the SDK with its HTTP exporter would add ten packages for the same bytes. Cards bear
the names of the semantic conventions for hardware (``hw.gpu.*``, ``hw.power``; status: development), with ``hw.id`` the UUID; what has no
name there is ``perfwatch.*``. Each job is a resource of its own.

Sources: opentelemetry-proto 1 (metrics.proto and its JSON mapping: integers of 64 bits are strings), semantic-conventions docs/hardware.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from perfwatch import __version__
from perfwatch.exporters.snapshot import STEP_BUCKETS, Card, NodeSnapshot, Snapshot
from perfwatch.verdict import STATES

CUMULATIVE = 2
RESOURCE = {  # of the labels of a job, by OpenTelemetry's names; the others are perfwatch.job.*
    "host": "host.name",
    "user": "user.name",
    "namespace": "k8s.namespace.name",
    "pod": "k8s.pod.name",
    "pod_uid": "k8s.pod.uid",
    "container": "k8s.container.name",
}

Point = dict[str, Any]
Metric = dict[str, Any]


def export_request(jobs: Iterable[Snapshot], node: NodeSnapshot | None, host: str, now: float) -> dict[str, Any]:
    """An ExportMetricsServiceRequest.

    Args:
        jobs: what is known of each.
        node: what a daemon knows of its node.
        host: the name of this machine.
        now: unix time.
    """
    found = [_resource(_of_job(job, host), _job_metrics(job, now)) for job in jobs]
    if node is not None:
        found.append(_resource({"host.name": host}, _node_metrics(node, now)))
    return {"resourceMetrics": found}


def _resource(attributes: Mapping[str, str], metrics: Iterable[Metric]) -> dict[str, Any]:
    own = {"service.name": "perfwatch", "service.version": __version__}
    scope = {"name": "perfwatch", "version": __version__}
    return {
        "resource": {"attributes": _attributes(own | dict(attributes))},
        "scopeMetrics": [{"scope": scope, "metrics": [one for one in metrics if one]}],
    }


def _of_job(job: Snapshot, host: str) -> dict[str, str]:
    named = {RESOURCE.get(name, f"perfwatch.job.{name}"): value for name, value in job.job.items()}
    return {"host.name": host, "perfwatch.session": job.session, "perfwatch.mode": job.mode} | named


def _job_metrics(job: Snapshot, now: float) -> Iterator[Metric]:
    began = job.began
    if job.state:
        states = [_point(now, int(name == job.state), {"perfwatch.state": name}) for name in STATES]
        yield _gauge("perfwatch.state", "1", "1 for the state that was reported last, 0 for the others.", states)
        said = {"state": job.state, "cause": job.cause, "owner": job.owner, "action": job.action}
        named = {f"perfwatch.{name}": value for name, value in said.items() if value}
        yield _gauge("perfwatch.verdict", "1", "1 for the verdict that was reported last.", [_point(now, 1, named)])
    yield _one("perfwatch.verdict.confidence", "1", "How sure the verdict is.", now, job.confidence)
    silent = None if job.silent_since is None else max(0.0, now - job.silent_since)
    yield _one("perfwatch.silent_time", "s", "For how long nothing has moved.", now, silent)
    told = [_point(now, job.told.get(name, 0), {"perfwatch.state": name}, began) for name in STATES]
    yield _counter("perfwatch.verdicts", "{verdict}", "Verdicts reported, by state.", told)
    steps = [_point(now, one.steps, {"perfwatch.rank": one.rank}, began) for one in job.ranks]
    yield _counter("perfwatch.steps", "{step}", "Optimizer steps counted in a process.", steps)
    if job.step_buckets:
        point = {
            **_point(now, None, {}, began),
            "count": str(sum(job.step_buckets)),
            "sum": job.step_seconds,
            "bucketCounts": [str(count) for count in job.step_buckets],
            "explicitBounds": list(STEP_BUCKETS),
        }
        kind = {"histogram": {"aggregationTemporality": CUMULATIVE, "dataPoints": [point]}}
        yield _metric("perfwatch.step.duration", "s", "Time between two steps, of all ranks.", kind)
    yield from _card_metrics(job.cards, now, began)
    yield _one("perfwatch.look.age", "s", "Time since the watch last sampled.", now, max(0.0, now - job.looked))
    used = [_point(now, job.own_cpu_seconds, {}, began)]
    yield _counter("perfwatch.cpu.time", "s", "CPU time of this watch and its helpers.", used)
    lost = [_point(now, job.lost_lines, {}, began)]
    yield _counter("perfwatch.recording.lost", "{line}", "Lines of the recording that the disk did not take.", lost)


def _card_metrics(cards: Iterable[Card], now: float, began: float) -> Iterator[Metric]:
    def points(name: str, more: Mapping[str, str] | None = None, start: float | None = None) -> list[Point]:
        seen = [(card, getattr(card, name)) for card in cards]
        return [_point(now, value, _card(card) | dict(more or {}), start) for card, value in seen if value is not None]

    general = points("resident", {"hw.gpu.task": "general"})
    yield _gauge("hw.gpu.utilization", "1", "Share of time in which a kernel was resident, lately.", general)
    used, size = points("memory_used_bytes", start=began), points("memory_bytes", start=began)
    yield _counter("hw.gpu.memory.usage", "By", "Memory of the GPU in use.", used, monotonic=False)
    yield _counter("hw.gpu.memory.limit", "By", "Memory of the GPU.", size, monotonic=False)
    yield _gauge("hw.gpu.memory.utilization", "1", "Share of its memory in use.", points("memory_share"))
    yield _gauge("hw.power", "W", "Power, lately.", points("power_watts", {"hw.type": "gpu"}))
    for name, text in (
        ("sm_active", "Share of the streaming multiprocessors that were active, lately."),
        ("tensor", "Share of time in which the tensor cores were active, lately."),
        ("dram", "Share of the memory bandwidth in use, lately."),
    ):
        yield _gauge(f"perfwatch.gpu.{name}", "1", text, points(name))
    regimes = [_point(now, 1, _card(card) | {"perfwatch.gpu.regime": card.regime}) for card in cards]
    yield _gauge("perfwatch.gpu.regime", "1", "1 for what the GPU does: work, wait, spin, idle, unknown.", regimes)


def _card(card: Card) -> dict[str, str]:
    known = {"hw.id": card.uuid, "hw.name": f"gpu {card.gpu}" if card.gpu else "", "hw.model": card.model}
    return {name: value for name, value in known.items() if value} | {"hw.vendor": "NVIDIA"}


def _node_metrics(node: NodeSnapshot, now: float) -> Iterator[Metric]:
    yield _one("perfwatch.node.jobs", "{job}", "Jobs that the daemon watches.", now, node.watched)
    yield _one("perfwatch.node.recorded", "By", "What all its recordings take.", now, node.recorded_bytes)


def _one(name: str, unit: str, text: str, now: float, value: float | None) -> Metric:
    return _gauge(name, unit, text, [] if value is None else [_point(now, value, {})])


def _gauge(name: str, unit: str, text: str, points: list[Point]) -> Metric:
    return _metric(name, unit, text, {"gauge": {"dataPoints": points}}) if points else {}


def _counter(name: str, unit: str, text: str, points: list[Point], monotonic: bool = True) -> Metric:
    """``monotonic`` False: OpenTelemetry's UpDownCounter."""
    kind = {"sum": {"aggregationTemporality": CUMULATIVE, "isMonotonic": monotonic, "dataPoints": points}}
    return _metric(name, unit, text, kind) if points else {}


def _metric(name: str, unit: str, text: str, kind: dict[str, Any]) -> Metric:
    return {"name": name, "description": text, "unit": unit, **kind}


def _point(now: float, value: float | None, attributes: Mapping[str, str], began: float | None = None) -> Point:
    made: Point = {"timeUnixNano": _nanoseconds(now), "attributes": _attributes(attributes)}
    if began is not None:
        made["startTimeUnixNano"] = _nanoseconds(min(began, now))
    if value is not None:
        made |= {"asInt": str(value)} if isinstance(value, int) else {"asDouble": value}
    return made


def _attributes(attributes: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": name, "value": {"stringValue": value}} for name, value in attributes.items()]


def _nanoseconds(seconds: float) -> str:
    return str(round(seconds * 1e9))
