"""What Prometheus gets: names and units by its conventions, the watch's last word, and nothing that was not seen."""

import select
import socket
import time
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from perfwatch.outlets.gauges import Gauges
from perfwatch.outlets.metrics import MetricsServer
from perfwatch.outlets.snapshot import Snapshot
from perfwatch.probes import readings as r
from perfwatch.triage.verdict import Suspect
from tests.sessions import CREATED, session, verdict
from tests.webhook import PATIENCE_SECONDS


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


def scrape(port: "int | None", until: str) -> dict[str, Metric]:
    """The metrics by name, once ``until`` is among them: a message to the server is on its way for a moment."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_SECONDS) as answer:
            text = answer.read().decode()
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
    now.event(9.0, "verdict", "x", verdict(silent_seconds=4.0))
    servers.append(MetricsServer("127.0.0.1", 0))

    assert "metrics are served on http://127.0.0.1:" in said(servers[0])

    servers[0].put(now.snapshot())
    found = scrape(servers[0].port, "perfwatch_state{")
    value = {(one.name, *sorted(one.labels.items())): one.value for family in found.values() for one in family.samples}
    mine = ("session", "s")

    assert value["perfwatch_state", mine, ("state", "hung")] == 1.0
    assert value["perfwatch_state", mine, ("state", "healthy")] == 0.0
    assert value["perfwatch_verdict", ("cause", "stuck_worker"), ("owner", "user_code"), mine, ("state", "hung")] == 1.0
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
    servers.append(MetricsServer("127.0.0.1", 0))
    said(servers[0])
    servers[0].put(gauges().snapshot())
    found = scrape(servers[0].port, "perfwatch_job_info{")

    for name, family in found.items():
        assert name.startswith("perfwatch_")
        assert not name.endswith(("_ms", "_percent", "_mb", "_mib"))
        assert family.documentation.endswith(".")
        assert all(sample.name.endswith("_total") for sample in family.samples if family.type == "counter")


def test_a_port_that_is_taken_is_said_with_the_way_out(servers: list[MetricsServer]) -> None:
    """And what is put is dropped, not waited for."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        servers.append(MetricsServer("127.0.0.1", port))
        sentence = said(servers[0])
        for _ in range(2000):
            servers[0].put(Snapshot(session="s", mode="run", root_pid=1, command="x", looked=1.0))

    assert f"no metrics on 127.0.0.1:{port}: Address already in use" in sentence
    assert "--metrics-port 0" in sentence


def test_nobody_else_on_the_network_can_ask(servers: list[MetricsServer]) -> None:
    """Unless an address is given, it listens on the loopback interface."""
    from perfwatch.outlets.wanted import parse_metrics

    assert parse_metrics("9123") == ("127.0.0.1", 9123)
    assert parse_metrics("0.0.0.0:9123") == ("0.0.0.0", 9123)
    assert parse_metrics("[::1]:0") == ("::1", 0)
