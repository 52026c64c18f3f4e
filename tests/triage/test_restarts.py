"""When processes that follow one another are a launcher's restarts, and when they are just jobs, one after the other."""

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.triage.roles.restarts import SHORT_LIFE_SECONDS, Restarts, restarts, unproven
from perfwatch.triage.rule import Cause
from perfwatch.verdict import Finding
from perfwatch_probes.readings import Process, ProcessEnded
from tests.sessions import session

SHELL, TORCHRUN = "bash sweep.sh", "python /env/bin/torchrun train.py"
NOW = 4000.0


def followed(above: str, life_seconds: float, *, code: int | None, pids: tuple[int, ...] = (20, 30, 40)) -> Case:
    """Processes of rank 0 below one parent: the last has just begun, and those before it ended so after such a life."""
    history = History(at=NOW)
    command = tuple(above.split())
    python = command[0] == "python"
    history.add(0.0, Process(pid=10, start_ticks=1, parent_pid=1, name=command[0], command=command, python=python))
    for number, pid in enumerate(pids):
        born = NOW - 1.0 - (len(pids) - 1 - number) * life_seconds
        history.add(
            born,
            Process(pid=pid, start_ticks=int(100 * born), parent_pid=10, name="python", command=("python", "train.py"),
                    python=True, torch_loaded=True, rank=0, age_seconds=0.0),
        )  # fmt: skip
        if pid != pids[-1]:
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
    proves = 2 * life_seconds - 1.0
    assert restarts(followed(above, life_seconds, code=code)) == (Restarts(0, 3, NOW, proves) if restarted else None)


def test_a_process_that_outlives_those_before_it_has_broken_the_loop() -> None:
    """The third try works."""
    case = followed(TORCHRUN, 20.0, code=1)
    case.history.at = NOW + 60.0

    assert restarts(Case(case.history, case.session)) is None


class Well:
    """A rule that finds nothing wrong."""

    CAUSE = Cause("balanced", "healthy", "user_code", ())

    def judge(self, case: Case) -> Finding:
        """Whatever the case is."""
        assert case.ranks
        return Finding(cause="balanced", state="healthy", summary="goes on", confidence=0.9, owner="user_code")


@pytest.mark.parametrize(
    ("pids", "life_seconds", "held_back"),
    [((30, 40), 20.0, True), ((30, 40), 100.0, False), ((20, 30, 40), 20.0, False)],
)
def test_after_one_restart_nobody_is_well_until_the_new_process_has_lasted(
    pids: tuple[int, ...], life_seconds: float, held_back: bool
) -> None:
    """It may end as the last one did. Nobody waits for minutes, though, and two restarts are a verdict."""
    case = followed(TORCHRUN, life_seconds, code=1, pids=pids)

    assert unproven(case) is held_back
    assert (judge(case, [Well()]).state == "inconclusive") is held_back
