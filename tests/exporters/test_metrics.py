"""What Prometheus gets: names and units by its conventions, the watch's last word, and nothing that was not seen."""

import json
import re
import select
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from perfwatch import __version__
from perfwatch.exporters.collector import CollectorClient
from perfwatch.exporters.families import families
from perfwatch.exporters.gauges import LABELS, Gauges
from perfwatch.exporters.metrics import MetricsServer
from perfwatch.exporters.snapshot import STEP_BUCKETS, Card, NodeSnapshot, RankSteps, Snapshot
from perfwatch.exporters.wanted import CollectorWanted, MetricsWanted, parse_endpoint, parse_headers, parse_socket
from perfwatch.ownership import labels, pods_of
from perfwatch.verdict import Suspect
from perfwatch_probes import readings as r
from tests.sessions import CREATED, session, verdict
from tests.webhook import PATIENCE_SECONDS, Webhook

pytestmark = pytest.mark.live


@pytest.fixture
def servers() -> Iterator[list[MetricsServer]]:
    """Those that a test opens, closed at its end."""
    opened: list[MetricsServer] = []
    yield opened
    for one in opened:
        one.close()


def said(server: MetricsServer) -> str:
    """Its next sentence."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends:
        select.select([server], [], [], PATIENCE_SECONDS)
        if sentences := server.news():
            return sentences[0]
    raise AssertionError("it says nothing")


def answer(server: MetricsServer, token: str = "") -> tuple[int, str]:
    """Status and body of one scrape, over a port or a unix socket."""
    with socket.socket(socket.AF_INET if "://" in server.address else socket.AF_UNIX) as asking:
        asking.settimeout(PATIENCE_SECONDS)
        url = urlsplit(server.address)
        asking.connect((url.hostname, url.port) if url.hostname else server.address)
        header = f"Authorization: {token}\r\n" if token else ""
        asking.sendall(f"GET /metrics HTTP/1.0\r\n{header}\r\n".encode())
        with asking.makefile("rb") as file:
            head, _, body = file.read().decode().partition("\r\n\r\n")
    return int(head.split()[1]), body


def scrape(server: MetricsServer, until: str) -> dict[str, Metric]:
    """The metrics by name, once ``until`` is among them: a message to the server is on its way for a moment."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends:
        _, text = answer(server)
        if until in text:
            return {family.name: family for family in text_string_to_metric_families(text)}
    raise AssertionError(f"{until} is not in {text}")


def gauges() -> Gauges:
    """Of a job that costs nothing to watch, at twelve."""
    return Gauges(None, session(), "s", wall=lambda: 12.0, cost=lambda: (3.5, 2**20))


def test_a_job_is_scraped_as_it_was_last_told(servers: list[MetricsServer]) -> None:
    """State, cause, steps of each rank, step times, a card's fingerprint, our own cost."""
    now = gauges()
    now.append(0.0, [r.Process(pid=7, start_ticks=1, parent_pid=1, name="p", command=("p",), rank=3)])
    now.append(1.0, [r.Steps(pid=7, tid=7, count=2, interval_seconds=(0.5, 0.6))])
    now.append(2.0, [r.Steps(pid=7, tid=7, count=3, interval_seconds=(0.5, 0.6, 3.0))])  # two of them were told before
    now.append(2.0, [r.Gpu(uuid="GPU-1", index=0, name="H200")])
    for second in range(3, 9):
        activity = r.GpuActivity(uuid="GPU-1", interval_seconds=1.0, graphics=0.4, sm_active=0.3, dram=0.1)
        now.append(float(second), [activity])
    now.event(9.0, "verdict", "x", verdict(silent_seconds=4.0, action="restart"))
    servers.append(MetricsServer(MetricsWanted()))

    assert "metrics are served on http://127.0.0.1:" in said(servers[0])

    servers[0].put(now.snapshot())
    found = scrape(servers[0], "perfwatch_state{")
    value = {(one.name, *sorted(one.labels.items())): one.value for family in found.values() for one in family.samples}
    mine = ("session", "s")

    assert value["perfwatch_state", mine, ("state", "hung")] == 1.0
    assert value["perfwatch_state", mine, ("state", "healthy")] == 0.0
    verdict_now = (("action", "restart"), ("cause", "stuck_worker"), ("owner", "user_code"), mine, ("state", "hung"))
    assert value[("perfwatch_verdict", *verdict_now)] == 1.0
    assert value["perfwatch_verdicts_total", mine, ("state", "hung")] == 1.0
    assert value["perfwatch_verdicts_total", mine, ("state", "slow")] == 0.0  # increase() needs the zero
    assert value["perfwatch_silent_since_timestamp_seconds", mine] == CREATED + 5.0
    assert value["perfwatch_steps_total", ("rank", "3"), mine] == 3.0
    assert value["perfwatch_step_duration_seconds_count", mine] == 3.0
    assert value["perfwatch_step_duration_seconds_sum", mine] == pytest.approx(4.1)
    assert value["perfwatch_step_duration_seconds_bucket", ("le", "1.024"), mine] == 2.0
    card = (("gpu", "0"), mine, ("uuid", "GPU-1"))
    assert value[("perfwatch_gpu_resident_ratio", *card)] == pytest.approx(0.4)
    assert value["perfwatch_gpu_regime", ("gpu", "0"), ("regime", "wait"), mine, ("uuid", "GPU-1")] == 1.0
    assert value["perfwatch_own_cpu_seconds_total", mine] == 3.5
    assert found["perfwatch_gpu_tensor_ratio"].samples == []  # missing is not zero


def test_before_the_first_verdict_no_state_is_claimed() -> None:
    """And a suspicion is a suspicion."""
    now = gauges()
    suspect = Suspect(state="hung", cause="blocked_network", silent_seconds=20.0, decides_in_seconds=40.0)
    now.event(3.0, "suspicion", "x", verdict(state="inconclusive", cause=None, suspect=suspect))

    assert (now.snapshot().state, now.snapshot().suspected) == ("", "blocked_network")

    now.event(4.0, "retraction", "x", verdict(state="healthy", cause=None))

    assert (now.snapshot().state, now.snapshot().suspected) == ("healthy", "")


def test_every_name_follows_the_conventions(servers: list[MetricsServer]) -> None:
    """A prefix, base units, ``_total`` for counters alone."""
    servers.append(MetricsServer(MetricsWanted()))
    said(servers[0])
    servers[0].put(gauges().snapshot())
    found = scrape(servers[0], "perfwatch_job_info{")

    for name, family in found.items():
        assert name.startswith("perfwatch_")
        assert not name.endswith(("_ms", "_percent", "_mb", "_mib"))
        assert family.documentation.endswith(".")
        assert all(sample.name.endswith("_total") for sample in family.samples if family.type == "counter")


JOB = r.Process(
    pid=7, start_ticks=1, parent_pid=1, name="p", command=("p",), rank=1, world_size=2,
    environment={
        "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "gpt", "HOSTNAME": "train-0", "POD_NAMESPACE": "team-a",
        "TORCHELASTIC_RUN_ID": "none", "WANDB_PROJECT": "gpt", "WANDB_RUN_ID": "1a2b3c",
    },
)  # fmt: skip
SLURM = r.Cgroup(path="/system.slice/slurmstepd.scope/job_4711/step_0", version=2)
POD = r.Cgroup(
    path=f"/kubepods.slice/kubepods-pod12345678_1234_1234_1234_123456789abc.slice/cri-containerd-{'ab' * 32}.scope",
    version=2,
)


def test_whose_job_it_is_is_known_before_the_first_verdict() -> None:
    """The kernel's word counts before the environment's; names of Kubernetes count only inside a pod."""
    session_of_ann = session(conditions={"user": "ann"})
    for groups, expected in (
        (SLURM, {"slurm_job_id": "4711"}),
        (POD, {"slurm_job_id": "1", "namespace": "team-a", "pod": "train-0", "pod_uid": "12345678-1234-1234-1234-123456789abc"}),
    ):  # fmt: skip
        now = Gauges(None, session_of_ann, "s", wall=lambda: 12.0, cost=lambda: (3.5, 2**20))
        now.append(0.0, [JOB, groups])

        assert now.snapshot().job == {
            "user": "ann", "host": "node-a", "world_size": "2", "slurm_job_name": "gpt", "wandb_run": "gpt/1a2b3c", **expected,
        }  # fmt: skip


VICTIM, POD_UID = "00000000-1234-1234-1234-123456789abc", "12345678-1234-1234-1234-123456789abc"
SLICE = f"kubepods-burstable-pod{POD_UID.replace('-', '_')}.slice"
DELEGATED = "/user.slice/user-1000.slice/user@1000.service"


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([f"/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{'ab' * 32}.scope"], {POD_UID}),
        ([f"/kubelet.slice/kubelet-kubepods.slice/kubelet-{SLICE}"], {POD_UID}),
        ([f"/system.slice/docker-{'cd' * 32}.scope/kubelet/kubepods/besteffort/pod{POD_UID}/{'ab' * 32}"], {POD_UID}),
        ([f"/../{SLICE}/cri-containerd-{'ab' * 32}.scope"], {POD_UID}),
        ([f"/kubepods/pod{POD_UID}/{'ab' * 32}/kubepods/pod{VICTIM}"], {POD_UID}),
        ([f"{DELEGATED}/kubepods.slice/kubepods-pod{VICTIM}.slice"], set()),
        ([f"/user.slice/{DELEGATED}/x/kubepods/pod{VICTIM}/{'ab' * 32}"], set()),
        ([f"/kubepods/my-pod{VICTIM}x/{'ab' * 32}"], set()),
        ([f"/pod{VICTIM}"], set()),
    ],
)
def test_no_user_and_no_container_can_make_the_group_of_another_pod(paths: list[str], expected: set[str]) -> None:
    """An action deletes the pod of this uid. Users may make groups below a service of theirs, and a pod in its own."""
    assert pods_of("\n".join(f"0::{path}" for path in paths)) == expected
    assert pods_of("\n".join(paths)) == expected


def test_a_job_in_groups_of_two_pods_has_none() -> None:
    """Of which it is cannot be said."""
    groups = "\n".join(f"/kubepods/pod{uid}/{'ab' * 32}" for uid in (VICTIM, POD_UID))

    assert labels(session(), [JOB], groups, "0", 1).pod_uid is None
    assert labels(session(), [JOB], groups.partition("\n")[0], "0", 1).pod_uid == VICTIM


def everything() -> Snapshot:
    """A job of which all is known."""
    labels = dict.fromkeys(LABELS, "x")
    card = Card(
        gpu="0",
        uuid="GPU-1",
        resident=0.1,
        sm_active=0.1,
        tensor=0.1,
        dram=0.1,
        power_watts=1.0,
        memory_used_bytes=1,
        memory_bytes=2,
    )
    return Snapshot(
        session="s", mode="run", root_pid=1, command="x", looked=1.0, job=labels, state="hung", cause="unknown",
        owner="unknown", confidence=0.8, judged=1.0, silent_since=1.0, suspected="unknown", ranks=(RankSteps("0", 1),),
        step_buckets=(1,) * (len(STEP_BUCKETS) + 1), cards=(card,), steps_wanted=2, ends_by=3,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("said", "wanted"), [("99600", 99600), ("", None), ("many", None), ("9" * 40, None), ("-1", None)]
)
def test_what_a_job_says_of_its_steps_and_its_limit_is_a_number_or_nothing(said: str, wanted: int | None) -> None:
    """Both are words of its environment; ranks that do not agree say nothing."""
    job = {"PERFWATCH_STEPS": said, "SLURM_JOB_END_TIME": said}
    ranks = [
        r.Process(pid=pid, start_ticks=1, parent_pid=1, name="p", command=("p",), rank=pid, environment=job)
        for pid in (7, 8)
    ]
    now = Gauges(None, session(), "s")
    now.append(0.0, ranks)
    told = now.snapshot()
    other = r.Process(
        pid=9, start_ticks=1, parent_pid=1, name="p", command=("p",), rank=9, environment={"PERFWATCH_STEPS": "5"}
    )
    now.append(1.0, [other])

    assert (told.steps_wanted, told.ends_by) == (wanted, wanted)
    assert now.snapshot().steps_wanted == (5 if wanted is None and not said else None)


class Everything(Collector):
    """All families at once."""

    def collect(self) -> Iterator[Metric]:
        """As they are served."""
        return families([everything()], NodeSnapshot(watched=1, adopted=1, recorded_bytes=1))


@pytest.fixture
def registry() -> CollectorRegistry:
    """All families at once."""
    made = CollectorRegistry(auto_describe=False)
    made.register(Everything())
    return made


def test_the_readme_lists_every_metric_with_its_type_and_labels(registry: CollectorRegistry, repository: Path) -> None:
    """One row each, and none that is not served."""
    text = (repository / "launcher/perfwatch/exporters/README.md").read_text()
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `perfwatch_")]
    listed = {row[0].strip(" `"): (row[1].strip(), set(re.findall(r"\w+", row[2]))) for row in rows}
    served = {
        {"counter": f"{one.name}_total", "info": f"{one.name}_info"}.get(one.type, one.name): (
            one.type.replace("info", "gauge"),
            {label for sample in one.samples for label in sample.labels} - {"le"},
        )
        for one in registry.collect()
    }

    assert listed == served


def test_the_metrics_are_open_metrics(registry: CollectorRegistry) -> None:
    """By the strict parser, which knows its rules of counters, units and info."""
    found = {one.name: one for one in parse_open_metrics(open_metrics(registry).decode())}  # type: ignore[no-untyped-call]

    assert found["perfwatch_own_cpu_seconds"].unit == "seconds"
    assert found["perfwatch_build"].samples[0].labels["version"] == __version__
    assert {one.type for one in found.values()} == {"gauge", "counter", "histogram", "info"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian package prometheus)")
def test_promtool_finds_nothing_wrong_with_the_metrics(registry: CollectorRegistry) -> None:
    """It lints names, types, units and help."""
    done = subprocess.run(
        ("promtool", "check", "metrics"), input=generate_latest(registry), capture_output=True, timeout=60
    )

    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_a_port_that_is_taken_is_said_with_the_way_out(servers: list[MetricsServer]) -> None:
    """And what is put is dropped, not waited for."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        servers.append(MetricsServer(MetricsWanted(port=port)))
        sentence = said(servers[0])
        for _ in range(2000):
            servers[0].put(Snapshot(session="s", mode="run", root_pid=1, command="x", looked=1.0))

    assert f"no metrics on 127.0.0.1:{port}: Address already in use" in sentence
    assert "--metrics-port 0" in sentence


def test_nobody_else_on_the_network_can_ask(servers: list[MetricsServer]) -> None:
    """Unless an address is given, it listens on the loopback interface."""
    from perfwatch.exporters.wanted import parse_metrics

    assert parse_metrics("9123") == ("127.0.0.1", 9123)
    assert parse_metrics("0.0.0.0:9123") == ("0.0.0.0", 9123)
    assert parse_metrics("[::1]:0") == ("::1", 0)


def test_the_command_line_is_served_only_when_it_is_asked_for(servers: list[MetricsServer]) -> None:
    """Everybody on the machine may scrape, and a command line holds what its user did not mean for them."""
    for wanted in (MetricsWanted(), MetricsWanted(command=True)):
        servers.append(MetricsServer(wanted))
        said(servers[-1])
        servers[-1].put(Snapshot(session="s", mode="run", root_pid=1, command="python train.py", looked=1.0))
    without, with_command = (
        scrape(one, "perfwatch_job_info{")["perfwatch_job_info"].samples[0].labels for one in servers
    )

    assert without == {"session": "s", "mode": "run", "root_pid": "1"}  # and what is not known is no label
    assert with_command == without | {"command": "python train.py"}


def test_a_scraper_without_the_token_gets_nothing(servers: list[MetricsServer]) -> None:
    """Nor one with another token, with its beginning, or with another scheme."""
    servers.append(MetricsServer(MetricsWanted(token="s3cret")))
    said(servers[0])

    for sent in ("", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "s3cret", "Bearer \u00e9"):
        assert answer(servers[0], sent) == (401, "")
    assert answer(servers[0], "Bearer s3cret")[0] == 200


def test_a_unix_socket_is_for_its_user_alone(servers: list[MetricsServer], tmp_path: Path) -> None:
    """From the moment that it is there; it goes with the server."""
    path = tmp_path / "metrics"
    servers.append(MetricsServer(MetricsWanted(socket=path)))

    assert said(servers[0]) == f"metrics are served on {path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert answer(servers[0])[0] == 200

    servers[0].close()

    assert not path.exists()


def test_a_folder_that_gives_its_group_lets_the_group_scrape(servers: list[MetricsServer], tmp_path: Path) -> None:
    """``install -d -m 2750 -g prometheus``: what is made in it belongs to that group."""
    tmp_path.chmod(0o2750)
    servers.append(MetricsServer(MetricsWanted(socket=tmp_path / "metrics")))
    said(servers[0])

    assert stat.S_IMODE((tmp_path / "metrics").stat().st_mode) == 0o660


def test_a_socket_that_a_killed_watch_left_is_replaced(servers: list[MetricsServer], tmp_path: Path) -> None:
    """One that somebody listens on is not."""
    path = tmp_path / "metrics"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    servers.append(MetricsServer(MetricsWanted(socket=path)))
    said(servers[0])
    servers.append(MetricsServer(MetricsWanted(socket=path)))

    assert f"no metrics on {path}: Address already in use" in said(servers[1])
    assert answer(servers[0])[0] == 200


def test_a_socket_is_refused_where_something_else_is_or_others_can_write(tmp_path: Path) -> None:
    """A file stays as it is, and so does a link."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)

    for name, why in (
        ("file", "something else"),
        ("link", "something else"),
        ("open/x", "other users"),
        ("x" * 200, "107"),
    ):
        with pytest.raises(ValueError, match=why):
            parse_socket(tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"
    assert parse_socket(tmp_path / "free") == tmp_path / "free"


# ---- an OpenTelemetry collector

# docs/hardware of OpenTelemetry's semantic conventions: instrument and unit of what we send.
CONVENTIONS = {
    "hw.gpu.utilization": ("gauge", "1"),
    "hw.gpu.memory.usage": ("sum", "By"),
    "hw.gpu.memory.limit": ("sum", "By"),
    "hw.gpu.memory.utilization": ("gauge", "1"),
    "hw.power": ("gauge", "W"),
}
HUNG = Snapshot(
    session="s", mode="run", root_pid=7, command="python train.py", looked=time.time(), began=CREATED,
    job={"user": "ann", "pod": "train-0", "slurm_job_id": "4711"}, state="hung", cause="stuck_worker", owner="data",
    confidence=0.95, told={"hung": 1}, ranks=(RankSteps("3", 17),), step_seconds=4.1,
    step_buckets=(0,) * len(STEP_BUCKETS) + (3,),
    cards=(Card(gpu="0", uuid="GPU-1", model="H200", resident=0.4, power_watts=500.0, memory_used_bytes=2**36, memory_bytes=2**37),),
)  # fmt: skip


@pytest.fixture
def collector() -> Iterator[Webhook]:
    """An OTLP/HTTP receiver."""
    hook = Webhook()
    yield hook
    hook.close()


def client(hook: Webhook, headers: str = "", every_seconds: float = 0.2) -> CollectorClient:
    """That posts to it."""
    endpoint = parse_endpoint(hook.url.partition("/services")[0])
    return CollectorClient(CollectorWanted(endpoint, parse_headers(headers)), every_seconds)


def told(hook: Webhook) -> dict[str, Any]:
    """The next request that tells of a job: one may be posted before the client has heard of any."""
    while not (request := hook.next())["resourceMetrics"]:
        pass
    return request


def points(request: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The data points of a request, by metric."""
    metrics = [one for job in request["resourceMetrics"] for one in job["scopeMetrics"][0]["metrics"]]
    kinds = [(one["name"], next(one[kind] for kind in ("gauge", "sum", "histogram") if kind in one)) for one in metrics]
    return {name: kind["dataPoints"] for name, kind in kinds}


def of_resource(request: dict[str, Any]) -> dict[str, str]:
    """The attributes of the first resource."""
    found = request["resourceMetrics"][0]["resource"]["attributes"]
    return {one["key"]: one["value"]["stringValue"] for one in found}


def test_a_collector_gets_what_a_scraper_gets(collector: Webhook) -> None:
    """State, steps, step times and cards, with whose job it is; at /v1/metrics, with the headers of the standard variable."""
    posting = client(collector, "authorization=Bearer%20abc, x-tenant=t")
    posting.put(HUNG)
    posting.put_node(NodeSnapshot(watched=1, adopted=1, recorded_bytes=5))
    request = told(collector)
    posting.close()
    (path, headers), found = collector.asked[0], points(request)
    states = {one["attributes"][0]["value"]["stringValue"]: one["asInt"] for one in found["perfwatch.state"]}

    assert (path, headers["Content-Type"]) == ("/v1/metrics", "application/json")
    assert (headers["Authorization"], headers["X-Tenant"]) == ("Bearer abc", "t")
    assert (states["hung"], states["healthy"]) == ("1", "0")
    assert found["perfwatch.steps"][0]["asInt"] == "17"
    assert found["perfwatch.step.duration"][0]["count"] == "3"
    assert found["perfwatch.step.duration"][0]["sum"] == pytest.approx(4.1)
    assert found["hw.gpu.utilization"][0]["asDouble"] == 0.4
    assert found["hw.gpu.memory.utilization"][0]["asDouble"] == 0.5
    assert {"user.name": "ann", "k8s.pod.name": "train-0", "perfwatch.job.slurm_job_id": "4711"}.items() <= of_resource(
        request
    ).items()
    assert "perfwatch.gpu.tensor" not in found  # missing is not zero
    assert "train.py" not in json.dumps(request)


def test_cards_bear_the_names_of_the_conventions(collector: Webhook) -> None:
    """Instrument and unit too; what has no name there is perfwatch's."""
    posting = client(collector)
    posting.put(HUNG)
    sent = told(collector)["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    posting.close()
    kinds = {one["name"]: (next(k for k in ("gauge", "sum", "histogram") if k in one), one["unit"]) for one in sent}

    assert {name: kind for name, kind in kinds.items() if name.startswith("hw.")} == CONVENTIONS
    assert all(name.startswith(("hw.", "perfwatch.")) for name in kinds)


def test_a_request_is_one_of_the_protocol(collector: Webhook) -> None:
    """OpenTelemetry's own definition reads it, and every field is known there."""
    pytest.importorskip("opentelemetry.proto", reason="needs opentelemetry-proto")
    from google.protobuf import json_format
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    posting = client(collector)
    posting.put(HUNG)
    read = json_format.Parse(json.dumps(told(collector)), ExportMetricsServiceRequest())
    posting.close()
    metrics = {one.name: one for one in read.resource_metrics[0].scope_metrics[0].metrics}
    (times,) = metrics["perfwatch.step.duration"].histogram.data_points

    assert metrics["perfwatch.steps"].sum.data_points[0].as_int == 17
    assert metrics["perfwatch.steps"].sum.is_monotonic
    assert not metrics["hw.gpu.memory.usage"].sum.is_monotonic
    assert (sum(times.bucket_counts), len(times.bucket_counts)) == (times.count, len(times.explicit_bounds) + 1)
    assert times.start_time_unix_nano == CREATED * 10**9 < times.time_unix_nano


def test_a_collector_that_refuses_is_reported_once_and_asked_again(collector: Webhook) -> None:
    """The counts are cumulative, so nothing is lost; the last state is posted when the watch is over."""
    collector.answers[:] = [503, 503, 200]
    posting = client(collector)
    told: list[str] = []
    for looks in range(3):
        posting.put(
            HUNG
            if looks < 2
            else Snapshot(session="s", mode="run", root_pid=7, command="", looked=time.time(), state="gone")
        )
        if looks == 2:
            posting.close()
        last = collector.next()
        told += posting.news() if looks < 2 else []
        if looks == 0:
            select.select([posting], [], [], PATIENCE_SECONDS)
            told += posting.news()
    states = {one["attributes"][0]["value"]["stringValue"]: one["asInt"] for one in points(last)["perfwatch.state"]}

    assert [sentence.partition("did not")[2] for sentence in told] == [
        " take the metrics: it answered 503; they are posted again every 0 s"
    ]
    assert states["gone"] == "1"


@pytest.mark.parametrize("text", ["localhost:4318", "http://user:key@host", "http://host/?key=1"])
def test_an_endpoint_that_cannot_be_one_is_refused(text: str) -> None:
    """A key in it would be seen by every user of the machine."""
    with pytest.raises(ValueError, match=r"http|OTEL_EXPORTER_OTLP_HEADERS"):
        parse_endpoint(text)


def test_the_end_of_a_run_reaches_a_collector(collector: Webhook) -> None:
    """The whole way: the option, the watch, the process that posts."""
    endpoint = collector.url.partition("/services")[0]
    words = ("run", "--quiet", "--otlp", endpoint, "--", sys.executable, "-c", "print(input())")
    with subprocess.Popen(
        (sys.executable, "-m", "perfwatch", *words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as job:
        collector.next()
        said, _ = job.communicate("trained\n", timeout=120)
    gone = False
    while not gone:
        states = points(collector.next()).get("perfwatch.state", [])
        gone = any(one["attributes"][0]["value"]["stringValue"] == "gone" and one["asInt"] == "1" for one in states)

    assert (job.returncode, said) == (0, "trained\n")
