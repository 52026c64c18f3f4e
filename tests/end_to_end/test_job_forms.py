"""Each way in which ranks come to be, with real process trees: they are one job, numbered, and kept apart from others."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from perfwatch_probes.group_variables import free_port
from tests.end_to_end.conftest import PATIENCE_SECONDS, PERFWATCH, Attach, StartJob, until

pytestmark = [pytest.mark.live, pytest.mark.end_to_end]


def listed() -> list[dict[str, Any]]:
    """The jobs that ``perfwatch ps --json`` shows."""
    done = subprocess.run(
        [*PERFWATCH, "ps", "--json"], check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    jobs: list[dict[str, Any]] = json.loads(done.stdout)["jobs"]
    return jobs


def with_process(pid: int) -> dict[str, Any]:
    """The listed job in which a process is a rank."""
    (found,) = (job for job in listed() if pid in [rank["pid"] for rank in job["ranks"]])
    return found


@contextmanager
def under_mpirun(library: Path, ranks: int, tmp_path: Path) -> Iterator[list[int]]:
    """Real mpirun with cheap trainers; yields their pids by rank, each of which has said that it trains."""
    program = tmp_path / "rank.py"
    program.write_text(
        "import os, runpy, sys\n"
        "read, write = os.pipe(); os.dup2(read, 0)\n"
        f"sys.stdout = open({str(tmp_path)!r} + '/said-' + os.environ['OMPI_COMM_WORLD_RANK'], 'w')\n"
        f"sys.argv = ['trainer.py', {str(library)!r}, '0']\n"
        f"runpy.run_path({str(library / 'trainer.py')!r}, run_name='__main__')\n"
    )
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), sys.executable, str(program)]
    names = {**os.environ, "OMPI_MCA_btl": "self,vader", "OMPI_MCA_plm": "isolated"}
    said = [tmp_path / f"said-{rank}" for rank in range(ranks)]  # mpirun may mix what they print
    job = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=names)
    try:
        until(lambda: all(one.is_file() and one.read_text().endswith("\n") for one in said))
        yield [int(one.read_text()) for one in said]
    finally:
        job.terminate()
        job.wait(PATIENCE_SECONDS)


def test_ranks_that_were_started_one_by_one_are_attached_to_together(job: StartJob, attach: Attach) -> None:
    """Two shells, two ranks, one master: whichever is named, both are seen; a pair with another master is another job."""
    pids, ports = [], (free_port(), free_port())
    for port, rank in ((ports[0], 0), (ports[0], 1), (ports[1], 0), (ports[1], 1)):
        pids.append(job("env", f"RANK={rank}", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}").pid)
    answer = attach(pids[1])

    assert answer.verdict["coverage"] == {"ranks_seen": 2, "world_size": 2}
    assert [[rank["pid"] for rank in with_process(pid)["ranks"]] for pid in (pids[0], pids[3])] == [pids[:2], pids[2:]]


@pytest.mark.parametrize("names", [(), ("env", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29813")], ids=["none", "master"])
def test_siblings_that_talk_to_each_other_are_one_job_though_nothing_numbers_them(
    job: StartJob, attach: Attach, names: tuple[str, ...]
) -> None:
    """A launcher of somebody's own gives its ranks their numbers on the command line, or by a name of its own; a third one is apart."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as here:
        there, _ = server.accept()
        with there:
            talking = [job(*names, pass_fds=(end.fileno(),)).pid for end in (here, there)]
    alone = job(*names).pid
    answer = attach(talking[1])

    assert answer.verdict["coverage"]["ranks_seen"] == 2
    assert [[rank["pid"] for rank in with_process(pid)["ranks"]] for pid in (talking[0], alone)] == [talking, [alone]]


def test_a_training_and_the_server_that_it_asks_are_two_jobs(job: StartJob, library: Path) -> None:
    """They talk, and run two programs."""
    other = library / "server.py"
    other.write_text((library / "trainer.py").read_text())
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as here:
        there, _ = server.accept()
        with there:
            trains = job(pass_fds=(here.fileno(),)).pid
            serves = job(program=other, pass_fds=(there.fileno(),)).pid

    assert [[rank["pid"] for rank in with_process(pid)["ranks"]] for pid in (trains, serves)] == [[trains], [serves]]


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed: apt-get install openmpi-bin")
def test_ranks_under_mpirun_have_their_numbers(library: Path, tmp_path: Path) -> None:
    """Open MPI says them in its own words, and RANK is nowhere in sight."""
    with under_mpirun(library, 2, tmp_path) as pids:
        found = with_process(pids[0])

    assert [(rank["rank"], rank["pid"]) for rank in found["ranks"]] == [(0, pids[0]), (1, pids[1])]
    assert found["world_size"] == 2


@contextmanager
def under_accelerate(processes: int, program: Path, *words: str) -> Iterator[int]:
    """A real ``accelerate launch`` of some processes without a GPU; yields its pid. Ended with all that it has started."""
    several = ("--multi_gpu",) if processes > 1 else ("--cpu",)
    counts = ("--num_machines", "1", "--num_processes", str(processes), "--main_process_port", str(free_port()))
    settled = ("--mixed_precision", "no", "--dynamo_backend", "no")  # it asks nothing then
    launch = (sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", *several, *counts, *settled)
    with subprocess.Popen(
        [*launch, str(program), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as job:
        try:
            yield job.pid
        finally:
            job.terminate()  # its ranks have sessions of their own, and it ends them
            job.wait(PATIENCE_SECONDS)
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)  # what it started in its own


def _rests(pid: int, number: int) -> bool:
    """Whether a rank of a job sleeps already."""
    ranks = [rank["pid"] for job in listed() if job["pid"] == pid for rank in job["ranks"] if rank["rank"] == number]
    return bool(ranks) and "nanosleep" in Path(f"/proc/{ranks[0]}/wchan").read_text()


def test_ranks_under_accelerate_are_numbered_and_the_one_that_does_not_come_is_named(repository: Path) -> None:
    """From the launcher's pid to rank 1 and its line."""
    drill = repository / "launcher" / "perfwatch" / "drills" / "programs" / "stalled_collective_sleep.py"
    with under_accelerate(2, drill) as pid:
        until(lambda: _rests(pid, 1))
        done = subprocess.run(
            [*PERFWATCH, "attach", str(pid), "--json"], capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )
    said = json.loads(done.stdout)

    assert (said["state"], said["cause"]) == ("hung", "stalled_collective"), said["summary"]
    assert [culprit["rank"] for culprit in said["culprits"]] == [1]
    assert "refresh_curriculum" in said["culprits"][0]["frame"]["function"]


def test_the_program_below_accelerate_is_what_ps_lists(repository: Path) -> None:
    """One process: the launcher waits for it, and is not what trains."""
    with under_accelerate(1, repository / "launcher" / "perfwatch" / "drills" / "programs" / "cpu_training.py") as pid:

        def trains() -> list[int]:
            return [rank["pid"] for job in listed() if job["pid"] == pid for rank in job["ranks"] if rank["pid"] != pid]

        until(lambda: len(trains()) == 1)


def test_torchrun_vouches_for_ranks_that_ended_well(repository: Path, tmp_path: Path) -> None:
    """Nobody else sees how they end; its exit code is theirs."""
    command = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(free_port()),
    )
    program = repository / "launcher" / "perfwatch" / "drills" / "programs" / "finished.py"
    subprocess.run(
        [*PERFWATCH, "run", "--session", str(tmp_path / "s"), "--", *command, str(program)],
        check=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
    )
    judged = subprocess.run(
        [*PERFWATCH, "replay", str(tmp_path / "s"), "--final", "--json"], capture_output=True, timeout=PATIENCE_SECONDS
    )
    verdict = json.loads(judged.stdout)

    assert (verdict["state"], verdict["cause"]) == ("gone", "finished")
    assert verdict["confidence"] == "certain"
