"""Files of ended processes do not fill the memory of the job."""

import os
from pathlib import Path

import pytest

from perfwatch.processes.place import enter
from perfwatch.run.leftovers import EVERY_SECONDS, MOST_FILES, Leftovers

RANK = {"MASTER_ADDR": "node-a", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "0"}


class Clock:
    """Seconds that pass when the test says so."""

    now = 0.0

    def __call__(self) -> float:  # noqa: D102
        return self.now


def living(proc: Path, *pids: int, inside: int | None = None) -> Path:
    """A /proc with these processes; ``inside``: what each is called in a namespace of its own."""
    for pid in pids:
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "status").write_text(f"Name:\tpython\nNSpid:\t{pid}\t{inside or pid}\n")
    return proc


def left(folder: Path, kind: str, count: int) -> list[str]:
    """The files of processes 1000 ..., the oldest first."""
    names = [kind.format(pid) for pid in range(1000, 1000 + count)]
    for when, name in enumerate(names):
        (folder / name).touch()
        os.utime(folder / name, (when, when))
    return names


def there(folder: Path) -> set[str]:
    """Which of such files are there."""
    return {name for name in os.listdir(folder) if name.startswith(("steps-", "crash-", "thread-"))}


def tidied(leftovers: Leftovers, clock: Clock, folder: Path, turns: int = 3) -> list[int]:
    """How many files are there after each turn."""
    counts = []
    for _ in range(turns):
        leftovers.tidy()
        counts.append(len(there(folder)))
        clock.now += EVERY_SECONDS
    return counts


@pytest.mark.parametrize("kind", ["steps-{}", "crash-{}.txt", "thread-{}-7.txt"])
def test_the_newest_files_of_ended_processes_stay(tmp_path: Path, kind: str) -> None:
    """What is removed had been left behind one turn before: the watch has told it since."""
    clock, place = Clock(), enter({}, (tmp_path,))
    names = left(place.folder, kind, MOST_FILES + 5)
    leftovers = Leftovers(place, clock, living(tmp_path / "proc", 1))

    assert tidied(leftovers, clock, place.folder) == [MOST_FILES + 5, MOST_FILES + 5, MOST_FILES]
    assert there(place.folder) == set(names[5:])


@pytest.mark.parametrize(("pid", "inside"), [(1000, None), (77, 1000)])
def test_the_page_of_a_living_process_stays(tmp_path: Path, pid: int, inside: int | None) -> None:
    """The oldest of all, also where the process is in a namespace of its own and signs with another pid."""
    clock, place = Clock(), enter({}, (tmp_path,))
    left(place.folder, "steps-{}", MOST_FILES + 5)
    tidied(Leftovers(place, clock, living(tmp_path / "proc", pid, inside=inside)), clock, place.folder)

    assert "steps-1000" in there(place.folder)
    assert "steps-1001" not in there(place.folder)


def test_nothing_is_removed_where_launchers_share_a_place(tmp_path: Path) -> None:
    """The others' processes may not be in our /proc."""
    clock, place = Clock(), enter(RANK, (tmp_path,))
    left(place.folder, "steps-{}", MOST_FILES + 5)

    assert tidied(Leftovers(place, clock, living(tmp_path / "proc", 1)), clock, place.folder)[-1] == MOST_FILES + 5
