"""When process groups are asked: on suspicion, seldom, never waiting; and `run` arms what can be asked without overriding anybody."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from perfwatch.run.arming import armed_groups
from perfwatch.triage.case import Case
from perfwatch.watching.process_groups import LAST_SECONDS, RAS_SECONDS
from perfwatch_probes.errand import Errand
from perfwatch_probes.group_variables import PIPE_VARIABLE, free_port
from perfwatch_probes.readings import (
    Communicator,
    ProbeCall,
    Process,
    ProcessEnded,
    Reading,
    Steps,
    Thread,
)
from tests.probes.ras_answers import ras_answer
from tests.sessions import session
from tests.watched_groups import Watched, dumps

pytestmark = pytest.mark.live

PROBES = Path(__file__).parent / "probes"


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[int]:
    """A process that answers as NCCL's RAS service."""
    port = free_port()
    report = ras_answer("2.28.9_hung.json")
    (tmp_path / "json").write_text(report.replace('"pid": 607', '"pid": {PID}').replace('"pid": 608', '"pid": {PID}'))
    process = subprocess.Popen(
        [sys.executable, str(PROBES / "ras_service.py"), str(port), str(tmp_path / "json"), str(tmp_path / "json"), ""],
        env={**os.environ, "NCCL_RAS_ADDR": f"localhost:{port}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    yield process.pid
    process.kill()
    process.communicate()


def asked(said: Sequence[Reading]) -> list[str]:
    """The outcomes of questions to RAS."""
    return [one.outcome for one in said if isinstance(one, ProbeCall) and one.probe == "nccl_ras"]


def test_ras_is_asked_on_suspicion_and_not_again_too_soon(rank: int) -> None:
    """Two answers must be apart to be compared, and the service is not to be loaded."""
    watched = Watched([rank])
    assert watched.look(suspicious=False) == []

    first = watched.look()
    assert asked(first) == ["ok"]
    assert [type(one) for one in first] == [Communicator, ProbeCall]
    assert watched.look() == []
    watched.clock.now += RAS_SECONDS
    assert asked(watched.look()) == ["ok"]
    watched.groups.close()


def test_a_job_of_one_rank_is_not_asked(rank: int) -> None:
    """It has nobody to wait for."""
    watched = Watched([rank], world_size=1)

    assert watched.look() == []
    assert not watched.groups.look(watched.case, suspicious=True, certain=False)


def test_a_job_without_nccl_is_asked_more_and_more_seldom() -> None:
    """gloo has no such service: nobody misses it."""
    ours = subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"]})
    try:
        watched = Watched([ours.pid])
        times = []
        for _ in range(240):
            if asked(watched.look()):
                times.append(watched.clock.now - 100.0)
            watched.clock.now += 0.5
    finally:
        ours.kill()
        ours.wait()

    assert asked(watched.said) in ([], ["absent"])
    assert 3 <= len(times) <= 10
    watched.groups.close()


def test_run_gives_each_job_a_port_of_its_own() -> None:
    """Nothing listens until somebody asks."""
    first, second = armed_groups({}), armed_groups({})

    assert first["NCCL_RAS_ADDR"].startswith("localhost:")
    assert first["NCCL_RAS_ADDR"] != second["NCCL_RAS_ADDR"]


def test_no_name_of_a_folder_that_may_be_missing_elsewhere_is_put_into_the_environment() -> None:
    """It travels with srun, into containers and to other users, and a rank that cannot make its recorder's pipe is aborted."""
    assert armed_groups({}).keys() == {"NCCL_RAS_ADDR"}


def test_a_port_that_the_user_has_chosen_stays() -> None:
    """And a service that is switched off stays off."""
    assert armed_groups({"NCCL_RAS_ADDR": "localhost:4444"}) == {"NCCL_RAS_ADDR": "localhost:4444"}
    assert "NCCL_RAS_ADDR" not in armed_groups({"NCCL_RAS_ENABLE": "0"})


def test_when_nccl_is_first_seen_whoever_was_absent_is_asked_anew() -> None:
    """While the first question is still under way: a program that has just made its process group."""
    ours = subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"]})
    try:
        watched = Watched([ours.pid])
        for _ in range(4):  # by now it is asked every few seconds only
            watched.look()
            watched.clock.now += 20.0
        assert watched.groups.look(watched.case, suspicious=True, certain=False)
        watched.case.history.add(
            0.0, Thread(pid=ours.pid, tid=ours.pid, name="pt_nccl_watchdg", state="S", cpu_seconds=0.0)
        )
        assert asked(watched.look()) in ([], ["absent"])
        watched.clock.now += RAS_SECONDS + 0.1
        before = watched.groups.look(watched.case, suspicious=True, certain=False)
    finally:
        ours.kill()
        ours.wait()

    assert before
    watched.groups.close()


def test_the_recorders_of_a_job_in_which_a_rank_makes_steps_are_left_alone(tmp_path: Path) -> None:
    """However still another rank is: each question would leave what looks like a failure on the job's standard error."""
    pipes = []
    for rank in range(2):
        os.mkfifo(tmp_path / f"fr_{rank}.pipe")
        pipes.append(os.open(tmp_path / f"fr_{rank}.pipe", os.O_RDONLY | os.O_NONBLOCK))
    environment = {"PATH": os.environ["PATH"], PIPE_VARIABLE: f"{tmp_path}/fr_"}
    ours = [subprocess.Popen(["sleep", "600"], env=environment) for _ in pipes]
    try:
        works, still = (one.pid for one in ours)
        watched = Watched([works, still])
        history = watched.case.history
        history.add(0.0, Communicator(communicator="a", size=2))
        history.add(0.0, Steps(pid=works, tid=works, count=9, step_ago_seconds=0.1))
        history.add(0.0, Thread(pid=still, tid=still, name="python", state="S", cpu_seconds=1.0, ran_ago_seconds=30.0))
        assert watched.case.progress[still].kind == "still"
        for _ in range(40):
            watched.look()
            watched.clock.now += 1.0
        written = [os.read(pipe, 64) for pipe in pipes]
    finally:
        for one in ours:
            one.kill()
            one.wait()
        for pipe in pipes:
            os.close(pipe)

    assert written == [b"", b""]
    watched.groups.close()


def gone(tmp_path: Path, number: int) -> Watched:
    """Two ranks that a signal ended, and whose dumps lie in the agent's folder."""
    watched = Watched([])
    for rank in (0, 1):
        dump = PROBES / "nccl" / f"fr_torch2.11_hung_rank{rank}.pickle"
        (tmp_path / f"fr_rank_{rank}").write_bytes(dump.read_bytes())
        pid = 2**22 + 1 + rank  # beyond any that there is
        who = Process(pid=pid, start_ticks=1, parent_pid=1, name="python", command=("python",), python=True, rank=rank, uid=os.getuid(),
                      world_size=2, age_seconds=60.0, environment={"PERFWATCH_AGENT_DIR": str(tmp_path)})  # fmt: skip
        watched.case.history.add(0.0, who)
        watched.case.history.add(1.0, ProcessEnded(pid=pid, start_ticks=1, signal=number))
    watched.case = Case(watched.case.history, session())
    return watched


BOTH = [(0, 3217, "file"), (1, 3198, "file")]


def test_what_ranks_wrote_before_the_watchdog_ended_them_is_read_once(tmp_path: Path) -> None:
    """Though none of them lives, and nobody suspects anything."""
    watched = gone(tmp_path, signal.SIGABRT)

    assert dumps(watched.look(suspicious=False)) == BOTH
    assert watched.look(suspicious=False) == []


def test_of_ranks_that_were_killed_nothing_is_read(tmp_path: Path) -> None:
    """They had no reason to write anything."""
    assert gone(tmp_path, signal.SIGKILL).look(suspicious=False) == []


def test_the_last_look_reads_it_too(tmp_path: Path) -> None:
    """Where ranks and launcher are gone at once."""
    watched = gone(tmp_path, signal.SIGABRT)
    watched.groups.last_look(watched.case)  # its clock stands

    assert dumps(watched.said) == BOTH


def test_the_last_look_waits_for_nothing_where_nobody_aborted(tmp_path: Path) -> None:
    """``run`` ends at most 0.2 s after its child."""
    watched = gone(tmp_path, signal.SIGKILL)
    began = time.monotonic()
    watched.groups.last_look(watched.case)

    assert time.monotonic() - began < LAST_SECONDS


class Broken(Errand):
    """A question whose answer is not as thought."""

    def poll(self) -> list[Reading] | None:
        """Whether it is there."""
        raise RuntimeError("not as thought")


def cannot_be_asked(*arguments: object) -> Errand:
    """There is no question."""
    raise RuntimeError("not as thought")


@pytest.mark.parametrize("errand", [Broken, cannot_be_asked])
def test_whatever_a_question_raises_is_recorded_and_ends_no_round(errand: Callable[..., Errand]) -> None:
    """The watch goes on, and polls when it is time."""
    watched = Watched([os.getpid()], errand=errand)
    said: list[Reading] = []
    for _ in range(4):
        watched.groups.look(watched.case, suspicious=True, certain=False)
        said += watched.said
        watched.said.clear()
        watched.clock.now += RAS_SECONDS
    watched.groups.close()

    assert [one.reason for one in said if isinstance(one, ProbeCall)][:1] == ["RuntimeError: not as thought"]
    assert asked(said)[:1] == ["unavailable"]
