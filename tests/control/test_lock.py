"""One watcher per job and node, whoever starts first, and a place that nobody else can enter."""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from perfwatch.processes.control import find_place
from perfwatch.processes.job_key import job_key
from perfwatch.processes.place import enter, places, private_home, roots, start_ticks

RANKS = {"MASTER_ADDR": "node-a", "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
NOBODY = 65534


def test_ranks_of_one_job_share_a_place_and_one_watches(tmp_path: Path) -> None:
    """The second launcher sees that the first watches; when the first gives up, it may."""
    first = enter({**RANKS, "RANK": "0"}, (tmp_path,))
    second = enter({**RANKS, "RANK": "1"}, (tmp_path,))

    assert first.folder == second.folder
    assert (first.take_watch(), second.take_watch()) == (True, False)
    first.give_up_watch()
    assert second.take_watch()


@pytest.mark.live
def test_registered_roots_are_seen_by_all(tmp_path: Path) -> None:
    """Each launcher says which process it started."""
    first = enter({**RANKS, "RANK": "0"}, (tmp_path,))
    second = enter({**RANKS, "RANK": "1"}, (tmp_path,))
    first.register(os.getpid())
    second.register(os.getppid())

    assert [root.pid for root in roots(first.folder)] == [os.getpid(), os.getppid()]


def folder_of(pid: int, home: Path) -> Path | None:
    """Where the agent of the job of this process writes."""
    armed = find_place(pid, (home,))
    return armed.folder.path if armed is not None else None


@pytest.mark.live
def test_a_process_above_several_runs_means_none_of_them(tmp_path: Path) -> None:
    """A shell above one run means that one; a process of a run means that run, however many there are."""
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as one,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other,
    ):
        first = enter({**RANKS, "RANK": "0"}, (tmp_path,))
        first.register(one.pid)
        alone = folder_of(os.getpid(), tmp_path)
        second = enter({**RANKS, "RANK": "0", "MASTER_PORT": "1"}, (tmp_path,))
        second.register(other.pid)
        found = [folder_of(pid, tmp_path) for pid in (os.getpid(), one.pid, other.pid)]

    assert alone == first.folder
    assert found == [None, first.folder, second.folder]


def test_root_whose_pid_was_reused_is_not_live(tmp_path: Path) -> None:
    """Identity is pid and start time."""
    place = enter({}, (tmp_path,))
    place.register(os.getpid())
    file = place.folder / place.name
    file.write_text(file.read_text().replace(str(start_ticks(os.getpid())), "12"))

    assert list(roots(place.folder)) == []


def test_same_rank_twice_is_another_job(tmp_path: Path) -> None:
    """Two commands in one allocation both have SLURM_PROCID=0: each is watched on its own."""
    environment = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    first = enter(environment, (tmp_path,))
    second = enter(environment, (tmp_path,))

    assert first.folder != second.folder
    assert (first.take_watch(), second.take_watch()) == (True, True)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0"},
        {"MASTER_ADDR": "node-a"},
        {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
        {**RANKS, "RANK": "0", "WORLD_SIZE": "1"},
    ],
)
def test_without_peers_there_is_no_job_key(environment: dict[str, str]) -> None:
    """A single launcher needs no agreement."""
    assert job_key(environment) is None


def test_jobs_with_different_addresses_do_not_meet() -> None:
    """Two jobs on one node differ in at least one name."""
    other = {**RANKS, "RANK": "0", "MASTER_PORT": "29501"}

    assert job_key({**RANKS, "RANK": "0"}) != job_key(other)


def test_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """A folder planted in a world-writable place is passed over for the next one."""
    planted, other = tmp_path / "planted", tmp_path / "other"
    planted.mkdir()
    other.mkdir()
    (planted / f"perfwatch-{os.getuid()}").mkdir(mode=0o777)
    (planted / f"perfwatch-{os.getuid()}").chmod(0o777)

    assert enter({}, (planted, other)).folder.is_relative_to(other)


def test_full_memory_gives_way_to_the_next_home(tmp_path: Path) -> None:
    """A job is watched even where it has filled the shared memory; where all is full, the first home has to do."""
    full, other = tmp_path / "full", tmp_path / "other"
    full.mkdir()
    other.mkdir()

    assert enter({}, (full, other), lambda home: 0 if full in home.parents else 2**30).folder.is_relative_to(other)
    assert private_home((full, other), lambda _: 0).is_relative_to(full)


def test_ranks_meet_where_the_first_of_them_is_though_memory_is_full_by_then(tmp_path: Path) -> None:
    """The job itself fills the shared memory while its launchers begin."""
    memory, other = tmp_path / "memory", tmp_path / "other"
    memory.mkdir()
    other.mkdir()
    first = enter({**RANKS, "RANK": "0"}, (memory, other))
    second = enter({**RANKS, "RANK": "1"}, (memory, other), lambda home: 0 if memory in home.parents else 2**30)

    assert first.folder == second.folder


def test_leaving_removes_the_place_when_nobody_uses_it(tmp_path: Path) -> None:
    """The last one out takes the folder along; a live trainer's page keeps it."""
    place = enter({}, (tmp_path,))
    kept = enter({**RANKS, "RANK": "0"}, (tmp_path,))
    (kept.folder / f"steps-{os.getpid()}").touch()
    place.leave()
    kept.leave()

    assert not place.folder.exists()
    assert kept.folder.exists()


@pytest.mark.live
def test_leaving_waits_for_what_outlives_its_rank(tmp_path: Path) -> None:
    """A DataLoader worker ends some seconds after its rank; a folder in memory must not stay for it."""
    place = enter({}, (tmp_path,))
    worker = subprocess.Popen(["sleep", "0.3"])
    threading.Thread(target=worker.wait).start()
    (place.folder / f"steps-{worker.pid}").touch()
    place.leave(30.0)

    assert not place.folder.exists()


def test_leaving_does_not_wait_for_another_launcher(tmp_path: Path) -> None:
    """It leaves after us, and takes the folder along."""
    ours, other = (enter({**RANKS, "RANK": rank}, (tmp_path,)) for rank in "01")
    (ours.folder / f"steps-{os.getpid()}").touch()
    began = time.monotonic()
    ours.leave(30.0)

    assert time.monotonic() - began < 15.0
    assert (other.folder / "root-1").exists()


@pytest.mark.live
def test_leaving_keeps_the_root_of_a_process_that_runs(tmp_path: Path) -> None:
    """A watcher whose launcher was killed may leave before it is killed itself: the job goes on, and its steps are still found."""
    place = enter({}, (tmp_path,))
    place.register(os.getpid())
    place.leave()

    assert [root.pid for root in roots(place.folder)] == [os.getpid()]
    assert folder_of(os.getpid(), tmp_path) == place.folder


@pytest.fixture
def left_by_the_dead(tmp_path: Path) -> Path:
    """The place of a launcher that was killed a minute ago."""
    program = (
        "import json, os, sys, pathlib, perfwatch.processes.place as l\n"
        "place = l.enter(json.loads(sys.argv[2]), (pathlib.Path(sys.argv[1]),))\n"
        "assert place.take_watch()\n"
        "print(place.folder, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", program, str(tmp_path), json.dumps({**RANKS, "RANK": "0"})]
    folder = Path(subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip())
    os.utime(folder, (time.time() - 60,) * 2)
    return folder


@pytest.mark.live
def test_place_that_a_killed_launcher_left_is_swept_later(left_by_the_dead: Path, tmp_path: Path) -> None:
    """Once nothing of that job lives."""
    enter({}, (tmp_path,))

    assert not left_by_the_dead.exists()


@pytest.mark.live
@pytest.mark.parametrize("name", ["lock", "root-0"])
def test_place_of_a_launcher_that_proc_does_not_show_is_not_swept(
    left_by_the_dead: Path, tmp_path: Path, name: str
) -> None:
    """In a container that shares the memory, and no more, the lock of the launcher or of its watcher is what tells."""
    with (left_by_the_dead / name).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        enter({}, (tmp_path,))
        kept = left_by_the_dead.exists()

    assert kept


def test_leaving_a_shared_place_leaves_it_to_a_launcher_that_proc_does_not_show(tmp_path: Path) -> None:
    """Ranks in containers of their own may share a place: the first that ends does not take it from the others."""
    first = enter({**RANKS, "RANK": "0"}, (tmp_path,))
    second = enter({**RANKS, "RANK": "1"}, (tmp_path,))
    first.leave()
    kept = second.folder.exists()
    second.leave()

    assert kept
    assert not second.folder.exists()


@pytest.mark.live
def test_a_pipe_in_place_of_a_root_holds_nobody(tmp_path: Path) -> None:
    """What looks for a job goes on to the roots that can be read."""
    place = enter({**RANKS, "RANK": "1"}, (tmp_path,))
    place.register(os.getpid())
    os.mkfifo(place.folder / "root-0")
    program = "import sys, pathlib, perfwatch.processes.place as l; print(*(r.pid for r in l.roots(pathlib.Path(sys.argv[1]))))"

    said = subprocess.run(
        [sys.executable, "-c", program, str(place.folder)], capture_output=True, text=True, timeout=30, check=True
    )

    assert said.stdout.split() == [str(os.getpid())]


@pytest.mark.parametrize(
    "content", ["[" * 4000, '{"pid": Infinity}', '{"pid": 1}', "[]", '{"pid": 1, "start_ticks": "x", "launcher": 1}']
)
def test_nonsense_in_place_of_a_root_is_passed_over(tmp_path: Path, content: str) -> None:
    """No error comes of it."""
    place = enter({}, (tmp_path,))
    (place.folder / "root-1").write_text(content)

    assert list(roots(place.folder)) == []


def test_a_place_that_others_can_change_is_not_believed(tmp_path: Path) -> None:
    """Neither one that a group may write to, nor one that a link leads to."""
    place = enter({}, (tmp_path,))
    other = enter({**RANKS, "RANK": "0"}, (tmp_path,))
    (tmp_path / "perfwatch-link").symlink_to(place.folder.parent)
    assert sorted(places((tmp_path,))) == sorted([place.folder, other.folder])

    other.folder.chmod(0o770)

    assert list(places((tmp_path,))) == [place.folder]


@pytest.mark.live
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_a_place_is_believed_by_its_own_user_alone() -> None:
    """One that another user has left open to all is not looked into, be it root's."""
    program = (
        "import os, sys, pathlib, perfwatch.processes.place as l; os.setuid(int(sys.argv[2])); "
        "print(len(list(l.places((pathlib.Path(sys.argv[1]),)))))"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        os.chmod(parent, 0o755)
        for owner in (0, 7, NOBODY):
            for folder in (Path(parent) / f"perfwatch-{owner}", Path(parent) / f"perfwatch-{owner}/run-1-1"):
                folder.mkdir()
                folder.chmod(0o755)
                os.chown(folder, 7, 7)

        def seen_by(user: int) -> str:
            command = [sys.executable, "-c", program, parent, str(user)]
            return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()

        seen = [seen_by(user) for user in (0, 7, NOBODY)]

    assert seen == ["0", "1", "0"]


def test_where_memory_has_room_nothing_is_left_elsewhere(tmp_path: Path) -> None:
    """The next home is only made when it is needed."""
    memory, other = tmp_path / "memory", tmp_path / "other"
    memory.mkdir()
    other.mkdir()
    enter({}, (memory, other), lambda _: 2**30)

    assert list(other.iterdir()) == []
