"""What looks at a job gives way to it: nice 5 and SCHED_BATCH. The program that a user starts with perfwatch keeps its priority."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perfwatch.commands import COMMANDS
from tests.end_to_end.conftest import until
from tests.security.conftest import DEADLINE_SECONDS, PERFWATCH, Popen, User

pytestmark = [pytest.mark.live, pytest.mark.without_root]
NAMES = list(COMMANDS)
# They start the user's program, or are a service whose unit sets the priority.
KEEP_PRIORITY = {"run", "ncu", "drill", "daemon"}
SAY = "import os; print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), flush=True)"
# The real command line, in a process that says at its end which priority it has.
COMMAND = f"import atexit, sys; from perfwatch.__main__ import main; atexit.register(lambda: exec({SAY!r})); main()"
ITS_OWN, POLITE = f"0 {os.SCHED_OTHER}", f"5 {os.SCHED_BATCH}"


def last_line(*command: str, **environment: str) -> str:
    """What a command prints last."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, env={**os.environ, **environment}
    )
    assert done.stdout, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture(autouse=True)
def _usual_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests compare with nice 0, and nobody has asked for a priority."""
    monkeypatch.delenv("PERFWATCH_NICE")
    if os.getpriority(os.PRIO_PROCESS, 0) != 0 or os.sched_getscheduler(0) != os.SCHED_OTHER:
        pytest.skip("the tests run at another priority than a user's shell")


@pytest.mark.parametrize("name", NAMES)
def test_a_command_gives_way_before_it_does_anything(name: str) -> None:
    """Each command is polite but those that start the user's program, and the daemon, whose unit decides."""
    said = last_line(sys.executable, "-c", COMMAND, name, "--help")

    assert said == (ITS_OWN if name in KEEP_PRIORITY else POLITE)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (("nice", "-n", "15"), f"15 {os.SCHED_BATCH}"),
        (("chrt", "--idle", "0"), f"5 {os.SCHED_IDLE}"),
        (("nice", "-n", "15", "chrt", "--idle", "0"), f"15 {os.SCHED_IDLE}"),
    ],
)
def test_no_priority_is_ever_raised(before: tuple[str, ...], expected: str) -> None:
    """A process that is nicer, or runs only when a core is idle, stays so."""
    assert last_line(*before, sys.executable, "-c", COMMAND, "attach", "--help") == expected


def test_the_user_can_keep_the_priority() -> None:
    """On a machine without an idle core a verdict may be worth more than politeness."""
    assert last_line(sys.executable, "-c", COMMAND, "attach", "--help", PERFWATCH_NICE="0") == ITS_OWN
    assert last_line(sys.executable, "-c", COMMAND, "attach", "--help", PERFWATCH_NICE="3") == f"3 {os.SCHED_BATCH}"


# The second line is one that only the command line library reads.
@pytest.mark.parametrize("options", [(), ("--patience", "60.5")])
def test_the_program_under_run_keeps_the_callers_priority(options: tuple[str, ...], tmp_path: Path) -> None:
    """However its command line is read, the job is not made slower than without perfwatch."""
    run = (
        *PERFWATCH,
        "run",
        "--quiet",
        "--session",
        str(tmp_path / "session"),
        *options,
        "--",
        sys.executable,
        "-c",
        SAY,
    )

    assert last_line(*run) == ITS_OWN
    assert last_line("nice", "-n", "4", *run) == f"4 {os.SCHED_OTHER}"


def processes_below(pid: int) -> dict[int, str]:
    """The name of each process that descends from this one, itself included."""
    found = {pid: Path(f"/proc/{pid}/comm").read_text().strip()}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            found |= processes_below(int(child))
        except OSError:
            continue  # it has ended
    return found


def test_all_that_an_attach_starts_is_polite(victim: User, start_job: Callable[..., Popen], tmp_path: Path) -> None:
    """The readers, the writer and the profilers too, and the sessions that these lead."""
    if os.geteuid() != 0:
        pytest.skip("the job is another user's")
    job = start_job(victim)
    with subprocess.Popen(
        (*PERFWATCH, "attach", str(job.pid), "--watch", "--session", str(tmp_path / "session")),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as watch:  # fmt: skip
        try:
            until(lambda: (tmp_path / "session" / "session.json").exists())
            seen = processes_below(watch.pid)
            assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in seen} == {5}
            assert {os.sched_getscheduler(pid) for pid in seen} == {os.SCHED_BATCH}
            writer = next(pid for pid, name in seen.items() if name == "perfwatch-write")
            group = Path(f"/proc/{writer}/autogroup")
            if group.exists() and group.read_text().startswith("/autogroup"):
                assert group.read_text().endswith("nice 5\n")
        finally:
            watch.send_signal(signal.SIGINT)
            watch.wait(DEADLINE_SECONDS)
