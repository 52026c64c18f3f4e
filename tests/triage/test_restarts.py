"""When processes that follow one another are a launcher's restarts, and when they are just jobs, one after the other."""

import pytest

from perfwatch.probes.readings import Process, ProcessEnded
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.roles.restarts import SHORT_LIFE_SECONDS, Restarts, restarts
from tests.sessions import session

SHELL, TORCHRUN = "bash sweep.sh", "python /env/bin/torchrun train.py"
NOW = 4000.0


def followed(above: str, life_seconds: float, *, code: int | None) -> Case:
    """Three processes of rank 0 below one parent: the third has just begun, and two ended so after such a life."""
    history = History(at=NOW)
    command = tuple(above.split())
    python = command[0] == "python"
    history.add(0.0, Process(pid=10, start_ticks=1, parent_pid=1, name=command[0], command=command, python=python))
    for number, pid in enumerate((20, 30, 40)):
        born = NOW - 1.0 - (2 - number) * life_seconds
        history.add(
            born,
            Process(pid=pid, start_ticks=int(100 * born), parent_pid=10, name="python", command=("python", "train.py"),
                    python=True, torch_loaded=True, rank=0, age_seconds=0.0),
        )  # fmt: skip
        if pid != 40:
            end = ProcessEnded(pid=pid, start_ticks=int(100 * born), exit_code=code)
            history.add(born + life_seconds, end)
    return Case(history, session(root_pids=(10,)))


@pytest.mark.parametrize(
    ("above", "life_seconds", "code", "restarted"),
    [
        (TORCHRUN, 20.0, None, True),  # how they ended only torchrun knows, and it starts anew what failed
        (SHELL, 20.0, 1, True),  # until python train.py; do sleep 5; done
        (SHELL, 20.0, 0, False),  # for seed in 1 2 3; do RANK=0 python train.py $seed; done
        (SHELL, 20.0, None, False),
        (TORCHRUN, 2 * SHORT_LIFE_SECONDS, 1, False),  # a run that fails now and then goes on
    ],
)
def test_only_what_follows_on_short_failures_is_a_restart(
    above: str, life_seconds: float, code: int | None, restarted: bool
) -> None:
    """Whoever ended well was not restarted, whatever came next."""
    assert restarts(followed(above, life_seconds, code=code)) == (Restarts(0, 3, NOW) if restarted else None)


def test_a_process_that_outlives_those_before_it_has_broken_the_loop() -> None:
    """The third try works."""
    case = followed(TORCHRUN, 20.0, code=1)
    case.history.at = NOW + 60.0

    assert restarts(Case(case.history, case.session)) is None
