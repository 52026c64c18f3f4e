"""Polling for a file: which file it is, named by the variables around the wait, and since when it stays."""

import pytest

from perfwatch.verdict import Verdict
from perfwatch_probes.readings import APPEARS, GOES, Descriptor, Frame, SourceLine, Stack, Steps, Wait
from tests.training import level
from tests.triage.rank_looks import FIRST, MODULE, STEP, TRAIN, Frames, job, judged, runs, uses

NAP = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.5)


PATH = "/data/build.lock"
WAITS: Frames = (Frame("guarded", TRAIN, 18), MODULE)
BEGAN, SEEN_FOR = 20.0, 6.0


SOUGHT = -2  # in place of a descriptor: what was found out about the path itself


@pytest.mark.parametrize(
    ("texts", "path"),
    [
        (("/runs/a", "/runs/a/best.pt"), "/runs/a/best.pt"),
        (("/runs/a/best.pt", "/runs/a/"), "/runs/a/best.pt"),
        (("/runs/a", "/runs/a2/best.pt"), None),
        (("fold", "best.pt"), "best.pt"),
        (("fold",), None),
    ],
)
def test_beside_the_path_of_a_file_its_folder_is_not_what_is_waited_for(
    texts: tuple[str, ...], path: str | None
) -> None:
    """The folder is there, and is often in a variable of its own. Of two files it is not known which it is."""
    history, end = job(1, trained=False), BEGAN + 66.0
    runs(history, FIRST, (WAITS,), BEGAN, end, share=0.001, wait=NAP, switches_per_second=2.0)
    uses(history, FIRST, 0.001, 0.0, end, BEGAN)
    history.add(BEGAN, SourceLine(file=TRAIN, line=18, text="time.sleep(0.5)", calls=("time.sleep",), awaits=APPEARS,
                                  loop_calls=("os.path.exists", "time.sleep"), loops=("while",)))  # fmt: skip
    history.add(end - 0.2, Stack(pid=FIRST, tid=FIRST, frames=WAITS, texts=texts))
    verdict = judged(history, end)

    assert (verdict.state, verdict.cause) == ("hung", "waiting_for_file")
    assert verdict.summary.endswith(
        f"waits for {path} to appear" if path else f"waits for a file to appear; in its variables: {', '.join(texts)}"
    )


def looks_for_it(awaits: str, changed_ago_seconds: float | None, variable: str = "lock") -> Verdict:
    """What is said after six seconds of a rank that looks for the file ``lock``.

    changed_ago_seconds: of the path in ``variable``; None where it is not there.
    """
    history, end = job(1, trained=False), BEGAN + SEEN_FOR
    runs(history, FIRST, (WAITS,), BEGAN, end, share=0.001, wait=NAP, switches_per_second=2.0)
    uses(history, FIRST, 0.001, 0.0, end, BEGAN)
    history.add(BEGAN, SourceLine(file=TRAIN, line=18, text="time.sleep(0.5)", calls=("time.sleep",), awaits=awaits, tested_names=("lock",),
                                  loop_calls=("os.path.exists", "time.sleep"), loops=("while",)))  # fmt: skip
    history.add(end - 0.2, Stack(pid=FIRST, tid=FIRST, frames=WAITS, texts=(PATH,), text_names=(variable,)))
    kind = "missing" if changed_ago_seconds is None else "file"
    history.add(end, Descriptor(pid=FIRST, fd=SOUGHT, kind=kind, target=PATH, changed_ago_seconds=changed_ago_seconds))
    return judged(history, end)


@pytest.mark.parametrize(
    ("awaits", "changed_ago_seconds", "state", "said"),
    [
        (GOES, 3000.0, "hung", f"{PATH} to be removed"),
        ("", 3000.0, "hung", f"{PATH} to change or to be removed"),
        (GOES, 20.0, "inconclusive", f"{PATH} to be removed"),
        (APPEARS, None, "inconclusive", f"{PATH} to appear"),
        (APPEARS, 3000.0, "inconclusive", f"a file to appear; in its variables: {PATH}"),
    ],
    ids=["stale", "unchanged", "young", "missing", "another_file"],
)
def test_a_file_that_is_there_tells_since_when_it_stays(
    awaits: str, changed_ago_seconds: float | None, state: str, said: str
) -> None:
    """One that is to appear and is there is not the one that is looked for."""
    verdict = looks_for_it(awaits, changed_ago_seconds)

    assert verdict.state == state
    assert verdict.summary.endswith(f"waits for {said}")
    assert level(verdict.confidence) != "certain"


def test_a_path_in_a_variable_that_the_loop_does_not_test_is_not_what_it_waits_for() -> None:
    """However old that file is: it is near it, perhaps."""
    verdict = looks_for_it(GOES, 3000.0, variable="table")

    assert verdict.state == "inconclusive"
    assert verdict.summary.endswith(f"waits for a file to be removed; in its variables: {PATH}")


def test_what_is_to_be_typed_is_quoted() -> None:
    """A file's name is not ours."""
    history, end, name = job(1, trained=False), BEGAN + 66.0, "/data/a b;$(reboot)"
    runs(history, FIRST, (WAITS,), BEGAN, end, share=0.001, wait=NAP, switches_per_second=2.0)
    uses(history, FIRST, 0.001, 0.0, end, BEGAN)
    history.add(BEGAN, SourceLine(file=TRAIN, line=18, text="time.sleep(0.5)", calls=("time.sleep",), tested_names=("lock",),
                                  loop_calls=("os.path.exists", "time.sleep"), loops=("while",)))  # fmt: skip
    history.add(end - 0.2, Stack(pid=FIRST, tid=FIRST, frames=WAITS, texts=(name,), text_names=("lock",)))

    assert judged(history, end).next == (f"ls -l '{name}'; fuser -v '{name}'",)


def test_what_a_lock_guards_is_not_reported_as_the_lock() -> None:
    """Its own file is named after that in the lock itself, which no variable of the caller shows; what is beside it is to be looked at."""
    history = job(1, trained=False)
    takes = (Frame("__enter__", "/app/cache.py", 18), Frame("read", TRAIN, 40), MODULE)
    runs(history, FIRST, (takes,), 20.0, 90.0, share=0.001, wait=NAP, switches_per_second=2.0)
    uses(history, FIRST, 0.001, 0.0, 90.0, 20.0)
    history.add(20.0, SourceLine(file="/app/cache.py", line=18, text="time.sleep(0.5)", calls=("time.sleep",),
                                 loop_calls=("os.open", "time.sleep"), loops=("while",)))  # fmt: skip
    history.add(89.9, Stack(pid=FIRST, tid=FIRST, frames=takes, texts=("/data/aug", "/data/aug/epoch3.bin")))
    verdict = judged(history, 90.0)

    assert (verdict.state, verdict.cause) == ("hung", "waiting_for_file")
    assert verdict.summary.endswith("waits for a lock file to be released; in its variables: /data/aug/epoch3.bin")
    assert verdict.next == ("ls -l /data/aug/epoch3.bin*",)


@pytest.mark.parametrize(
    ("line", "loop_calls", "state"),
    [
        (17, ("os.path.exists", "time.sleep"), "hung"),
        (17, ("os.path.exists", "time.sleep", "net"), "inconclusive"),
        (25, ("os.path.exists", "time.sleep"), "inconclusive"),
    ],
    ids=["looks", "works", "outside"],
)
def test_who_is_met_in_the_midst_of_a_look_has_not_gone_on(line: int, loop_calls: tuple[str, ...], state: str) -> None:
    """Once in a while a sample falls on the look itself; beside a loop that does more, or outside of it, that is a move."""
    history, end = job(1, trained=False), BEGAN + 66.0
    runs(history, FIRST, (WAITS,), BEGAN, BEGAN + 15.0, share=0.001, wait=NAP, switches_per_second=2.0)
    there = (Frame("guarded", TRAIN, line), MODULE)
    history.add(BEGAN + 15.1, Stack(pid=FIRST, tid=FIRST, frames=there, samples=1, span_seconds=0.003))
    runs(history, FIRST, (WAITS,), BEGAN + 15.2, end, share=0.001, wait=NAP, switches_per_second=2.0)
    uses(history, FIRST, 0.001, 0.0, end, BEGAN)
    history.add(BEGAN, SourceLine(file=TRAIN, line=18, text="time.sleep(0.5)", calls=("time.sleep",), awaits=APPEARS,
                                  loop_calls=loop_calls, loops=("while",), loop_lines=(17, 18)))  # fmt: skip

    assert judged(history, end).state == state


@pytest.mark.parametrize(
    ("trained", "paused", "waited", "state"),
    [
        (540, 0.25, 17.0, "inconclusive"),
        (540, 0.25, 22.0, "hung"),
        (300, 0.25, 22.0, "inconclusive"),
        (540, 4.0, 22.0, "inconclusive"),
        (540, 4.0, 62.0, "hung"),
    ],
    ids=["not_yet", "overdue", "trained_for_less", "it_paused_before", "the_hang_timeout"],
)
def test_a_run_whose_steps_were_regular_for_long_is_given_less_time(
    trained: int, paused: float, waited: float, state: str
) -> None:
    """Steps of a quarter of a second for nine minutes, then a loop that polls for a flag file. One pause of 4 s is enough doubt."""
    history, stopped = job(1, trained=False), BEGAN + trained
    for second in range(int(BEGAN), int(stopped + waited)):
        count = min(second, int(stopped)) * 4
        ago, longest = max(0.0, second - stopped), paused if second == 200 else 0.25
        history.add(float(second), Steps(pid=FIRST, tid=FIRST, count=count, step_ago_seconds=ago,
                                         interval_seconds=(0.25, 0.25, 0.25, longest) if not ago else ()))  # fmt: skip
    runs(history, FIRST, STEP, stopped - 20.0, stopped)
    runs(history, FIRST, (WAITS,), stopped, stopped + waited, share=0.001, wait=NAP, switches_per_second=2.0)
    uses(history, FIRST, 0.001, 0.0, stopped + waited, stopped - 20.0)
    history.add(stopped, SourceLine(file=TRAIN, line=18, text="time.sleep(0.5)", calls=("time.sleep",), awaits=APPEARS,
                                    loop_calls=("os.path.exists", "time.sleep"), loops=("while",)))  # fmt: skip

    assert judged(history, stopped + waited).state == state
