"""What Prometheus gets: names and units by its conventions, the watch's last word, and nothing that was not seen."""

import select
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from perfwatch.exporters.gauges import Gauges
from perfwatch.exporters.metrics import MetricsServer
from perfwatch.exporters.snapshot import Snapshot
from perfwatch.exporters.wanted import MetricsWanted, parse_socket
from perfwatch.verdict import Suspect
from perfwatch_probes import readings as r
from tests.sessions import CREATED, session, verdict
from tests.webhook import PATIENCE_SECONDS

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
    now.event(9.0, "verdict", "x", verdict(silent_seconds=4.0))
    servers.append(MetricsServer(MetricsWanted()))

    assert "metrics are served on http://127.0.0.1:" in said(servers[0])

    servers[0].put(now.snapshot())
    found = scrape(servers[0], "perfwatch_state{")
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
    servers.append(MetricsServer(MetricsWanted()))
    said(servers[0])
    servers[0].put(gauges().snapshot())
    found = scrape(servers[0], "perfwatch_job_info{")

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

    assert without == {"session": "s", "mode": "run", "root_pid": "1"}
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
