"""What a watch tells to other programs, in which order, and what the operator's command is given."""

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from perfwatch.exporters.exporters import Outlets
from perfwatch.exporters.on_verdict import ROOM_BYTES, Actor, content_of, is_own
from perfwatch.exporters.snapshot import Snapshot
from perfwatch.exporters.wanted import DEFAULT_NEWS, CommandWanted, parse_command
from perfwatch.verdict import Evidence, JobLabels
from perfwatch.watching.news import News
from tests.end_to_end.conftest import needs_root, until
from tests.sessions import session, verdict
from tests.uids import own_uid
from tests.webhook import PATIENCE_SECONDS

pytestmark = pytest.mark.live


class Heard:
    """Metrics and notifier in one: remembers what it was given, in order."""

    posted = failed = 0

    def __init__(self) -> None:
        self.order: list[str] = []

    def put(self, _: Snapshot) -> None:
        """Metrics."""
        self.order.append("metrics")

    def post(self, _: dict[str, Any]) -> None:
        """A notification."""
        self.order.append("post")

    def act(self, _: dict[str, Any], own: bool) -> None:
        """A command."""
        self.order.append("act")

    def news(self) -> list[str]:
        """Nothing went wrong."""
        return []

    def close(self) -> None:
        """Nothing to close."""


def test_who_is_told_of_a_change_finds_it_in_the_metrics() -> None:
    """They are made anew before the post, however young the last ones are."""
    heard = Heard()
    outlets = Outlets(
        session(root_pids=(1,)), None, None, metrics=heard, notifier=heard, actor=heard, clock=lambda: 100.0
    )
    outlets.tick()
    outlets.tick()
    outlets.news(News(kind="verdict", at=1.0, text="", verdict=verdict(state="hung", cause="stuck_worker")))
    outlets.tick()

    assert heard.order == ["metrics", "metrics", "post", "act"]


def test_a_good_end_is_posted_only_if_it_is_asked_for_and_acted_upon_in_any_case() -> None:
    """A sweep of a hundred jobs would fill the channel."""
    for wanted, expected in ((DEFAULT_NEWS, ["act"]), (("finished",), ["post", "act"])):
        heard = Heard()
        outlets = Outlets(session(), None, None, notifier=heard, actor=heard, wanted_news=wanted)
        outlets.ended(verdict(state="gone", cause="finished"))

        assert heard.order == expected


def acted(wanted: CommandWanted, content: dict[str, Any], own: bool = True) -> str:
    """What is said of the command."""
    actor = Actor(wanted)
    actor.act(content, own)
    ends = time.monotonic() + PATIENCE_SECONDS
    try:
        while time.monotonic() < ends:
            select.select([actor], [], [], PATIENCE_SECONDS)
            if said := actor.news():
                return said[0]
    finally:
        actor.close()
    raise AssertionError("it says nothing")


def of_uid(uid: int | None, **changes: object) -> dict[str, Any]:
    """A verdict on a job of this user."""
    return content_of(verdict(action="restart", job=JobLabels(uid=uid), **changes))


def test_the_command_gets_the_verdict_on_stdin_and_no_shell_reads_it(tmp_path: Path) -> None:
    """What it prints last is reported with its exit code."""
    words = parse_command(f"tee {tmp_path}/verdict '$(touch {tmp_path}/shell)' ; true")

    said = acted(CommandWanted(words), of_uid(os.getuid(), summary="stuck at $(reboot)"))
    found = json.loads((tmp_path / "verdict").read_text())

    assert (found["schema"], found["action"], found["summary"]) == (
        "perfwatch.verdict/2",
        "restart",
        "stuck at $(reboot)",
    )
    assert said.startswith("--on-verdict tee (hung, action restart): exit code")
    assert not (tmp_path / "shell").exists()


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """At its deadline; the next verdict is not kept waiting for ever."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    script = f"import os, time; os.open({str(fifo)!r}, os.O_WRONLY); os.fork(); time.sleep(1e6)"

    said = acted(CommandWanted((sys.executable, "-c", script), deadline_seconds=1.0), of_uid(os.getuid()))
    ready, _, _ = select.select([reader], [], [], PATIENCE_SECONDS)

    assert "ended by perfwatch after 1.0 s" in said
    assert ready
    assert os.read(reader, 1) == b""  # nobody holds the other end


@needs_root()
@pytest.mark.parametrize("asked", [False, True])
def test_root_runs_it_as_the_user_of_the_job_or_as_the_one_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """With no right, group or variable of root's."""
    monkeypatch.setenv("OF_ROOT", "secret")
    uid, script = own_uid(3), "(id -u; id -G; env; grep ^Cap /proc/self/status) | tr '\\n\\t' ';:'"
    said = acted(CommandWanted(("sh", "-c", script), uid if asked else None), of_uid(own_uid(4) if asked else uid))
    lines = said.partition("exit code 0: ")[2].split(";")

    assert lines[:2] == [str(uid), "65534"]
    assert "OF_ROOT" not in said
    assert [line for line in lines if line.startswith("CapEff")] == [f"CapEff::{'0' * 16}"]


@needs_root()
def test_root_runs_nothing_for_a_job_whose_user_is_not_known() -> None:
    """It says so."""
    assert "not run: the ranks of the job are of several users" in acted(CommandWanted(("true",)), of_uid(None))


@needs_root()
def test_root_runs_nothing_as_root_for_a_job_that_is_root_in_a_container() -> None:
    """It has root's uid and fewer rights, and its environment may name the job of anybody."""
    fewer = subprocess.Popen(("setpriv", "--bounding-set=-sys_admin", "sleep", "60"))
    ours = subprocess.Popen(("sleep", "60"))
    try:
        until(lambda: b"sleep" in Path(f"/proc/{fewer.pid}/cmdline").read_bytes()[:6])
        found = [is_own(session(mode="attach", root_pids=(one.pid,))) for one in (fewer, ours)]
    finally:
        for one in (fewer, ours):
            one.kill()
            one.wait()

    assert found == [False, True]
    assert "not run: the job is root's in a container" in acted(CommandWanted(("true",)), of_uid(0), own=False)
    assert "exit code 0" in acted(CommandWanted(("true",), uid=0), of_uid(0), own=False)  # as the operator says


def test_nothing_is_run_for_the_job_of_a_user_that_we_cannot_become() -> None:
    """A user who may look into a job of another one."""
    if os.geteuid() == 0:
        become = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
        script = (
            "from tests.exporters.test_outlets import *\n"
            "print(acted(CommandWanted(('true',)), of_uid(65533), own=False))"
        )
        done = subprocess.run(
            (*become, sys.executable, "-c", script),
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=60,
        )
        said = done.stdout + done.stderr
    else:
        said = acted(CommandWanted(("true",)), of_uid(os.geteuid() + 1), own=False)

    assert "cannot become that user" in said


def test_a_verdict_that_is_too_long_loses_lists_and_no_fact() -> None:
    """What an action needs is always there."""
    evidence = tuple(
        Evidence(witness="stack", entity=f"pid {number}", claim="x" * 1000, observed="y") for number in range(100)
    )
    content = content_of(verdict(action="restart", evidence=evidence))

    assert len(json.dumps(content)) <= ROOM_BYTES
    assert (content["evidence"], content["action"], content["cause"]) == ([], "restart", "stuck_worker")
