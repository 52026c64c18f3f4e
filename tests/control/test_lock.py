"""One watcher per job and node, whoever starts first, and a place that nobody else can enter."""

import os
from pathlib import Path

import pytest

from perfwatch.lock import enter, job_key, roots, start_ticks

RANKS = {"MASTER_ADDR": "node-a", "MASTER_PORT": "29500", "WORLD_SIZE": "2"}


def test_ranks_of_one_job_share_a_place_and_one_watches(tmp_path: Path) -> None:
    """The second launcher sees that the first watches; when the first gives up, it may."""
    first = enter({**RANKS, "RANK": "0"}, (tmp_path,))
    second = enter({**RANKS, "RANK": "1"}, (tmp_path,))

    assert first.folder == second.folder
    assert (first.take_watch(), second.take_watch()) == (True, False)
    first.give_up_watch()
    assert second.take_watch()


def test_registered_roots_are_seen_by_all(tmp_path: Path) -> None:
    """Each launcher says which process it started."""
    first = enter({**RANKS, "RANK": "0"}, (tmp_path,))
    second = enter({**RANKS, "RANK": "1"}, (tmp_path,))
    first.register(os.getpid())
    second.register(os.getppid())

    assert [root.pid for root in roots(first.folder)] == [os.getpid(), os.getppid()]


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


def test_leaving_removes_the_place_when_nobody_uses_it(tmp_path: Path) -> None:
    """The last one out takes the folder along; a live trainer's page keeps it."""
    place = enter({}, (tmp_path,))
    kept = enter({**RANKS, "RANK": "0"}, (tmp_path,))
    (kept.folder / f"steps-{os.getpid()}").touch()
    place.leave()
    kept.leave()

    assert not place.folder.exists()
    assert kept.folder.exists()


def test_place_that_a_killed_launcher_left_is_swept_later(tmp_path: Path) -> None:
    """Once nothing of that job lives."""
    old = enter({**RANKS, "RANK": "0"}, (tmp_path,))
    os.utime(old.folder, (0, 0))
    enter({}, (tmp_path,))

    assert not old.folder.exists()
