"""What is told when a verdict follows another: news once, and a retraction only where a job goes on."""

import pytest

from perfwatch.processes.channel import Channel
from perfwatch.run.voice import Voice
from perfwatch.verdict import Culprit, Finding, Link, Suspect, Verdict
from perfwatch.watching.news import News, Teller
from tests.sessions import session, verdict

SUSPECTED = Suspect(state="hung", cause="stalled_collective", silent_seconds=30.0, decides_in_seconds=30.0)
CRAWLS = Suspect(state="slow", cause="retrying", silent_seconds=30.0, decides_in_seconds=30.0)


def said(state: str, cause: str | None, suspect: Suspect | None = None, frame: str | None = None) -> Verdict:
    """A verdict of this state, about this line."""
    culprits = (Culprit(pid=700, frame=frame),) if frame else ()
    return verdict(state=state, cause=cause, summary=f"it is {state}", suspect=suspect, culprits=culprits)


@pytest.mark.parametrize(
    ("before", "after", "kind", "text"),
    [
        (said("inconclusive", None, CRAWLS), said("slow", "retrying"), "verdict", "it is slow"),
        (
            said("inconclusive", None, SUSPECTED),
            said("slow", "straggling_rank"),
            "retraction",
            "moves again: it is slow",
        ),
        (
            said("inconclusive", None, SUSPECTED),
            said("healthy", "balanced"),
            "retraction",
            "moves again: it is healthy",
        ),
        (said("hung", "endless_python"), said("slow", "straggling_rank"), "retraction", "moves again: it is slow"),
        (said("slow", "synchronising"), said("slow", "straggling_rank"), "verdict", "it is slow"),
        (said("slow", "synchronising"), said("hung", "endless_python"), "verdict", "it is hung"),
        (said("slow", "synchronising"), said("healthy", "balanced"), "retraction", "no longer slow: it is healthy"),
        (
            said("slow", "contended_cpu"),
            said("busy", "computing_on_host"),
            "retraction",
            "contended_cpu is over: it is busy",
        ),
    ],
)
def test_what_was_suspected_is_taken_back_by_a_job_that_goes_on(
    before: Verdict, after: Verdict, kind: str, text: str
) -> None:
    """One that seemed slow and is has not; one that hung, or seemed to, and goes on has moved, however slowly."""
    told: list[News] = []
    teller = Teller(session(), None, told.append)
    teller.tell(before, 10.0)
    teller.tell(after, 60.0)

    assert [(one.kind, one.text) for one in told[1:]] == [(kind, text)]


@pytest.mark.parametrize(("since_step", "told_again"), [(40.0, False), (20.0, True), (None, True)])
def test_a_hang_is_not_taken_back_before_there_is_another_step(since_step: float | None, told_again: bool) -> None:
    """A job that is asked to end moves as well."""
    told: list[News] = []
    teller = Teller(session(), None, told.append)
    teller.tell(said("hung", "stuck_worker"), 30.0)
    teller.tell(said("slow", "starved_by_transforms"), 60.0, since_step_seconds=since_step)

    assert [one.kind for one in told] == ["verdict", *(["retraction"] if told_again else [])]


def test_a_line_names_what_is_suspected_or_the_state() -> None:
    """A suspicion without a suspect has no state to name."""
    lines = [
        News(kind, 9.8, "a text", verdict).line()
        for kind, verdict in (
            ("suspicion", said("inconclusive", None, SUSPECTED)),
            ("suspicion", said("inconclusive", None)),
            ("verdict", said("hung", "stuck_worker")),
        )
    ]

    assert lines == [
        f"9.8 s suspicion: {SUSPECTED.state} ({SUSPECTED.cause}): a text",
        "9.8 s suspicion: a text",
        "9.8 s verdict: hung: a text",
    ]


def test_what_may_be_work_is_no_suspicion() -> None:
    """It is told when it has lasted, and an evaluation of a few seconds never."""
    told: list[News] = []
    teller = Teller(session(), None, told.append)
    maybe = Suspect(state="busy", cause="waiting_on_work", silent_seconds=15.0, decides_in_seconds=6.0)
    teller.tell(said("inconclusive", None, maybe), 15.0)
    teller.tell(said("busy", "waiting_on_work"), 21.0)

    assert [(one.kind, one.at) for one in told] == [("verdict", 21.0)]


def test_the_same_verdict_is_told_once() -> None:
    """However often it is found."""
    told: list[News] = []
    teller = Teller(session(), None, told.append)
    for at in (1.0, 2.0, 3.0):
        teller.tell(said("slow", "synchronising"), at)

    assert [one.at for one in told] == [1.0]


@pytest.mark.parametrize(
    ("found", "reported"),
    [
        # Rank 1 was sampled before rank 0: its line is better explained a moment later.
        ({1.0: "endless_python", 2.0: "stalled_collective", 7.0: "stalled_collective"}, {1.0, 7.0}),
        # Two rules alternate, and none of their turns is long.
        ({1.0: "endless_python", 2.0: "stalled_collective", 5.0: "endless_python", 6.0: "stalled_collective"}, {1.0}),
        # What cannot be seen for a moment does not end a turn.
        ({1.0: "endless_python", 2.0: "stalled_collective", 4.0: None, 7.0: "stalled_collective"}, {1.0, 7.0}),
        # The first cause returns: it must stand twice as long as the first correction.
        (
            {
                1.0: "endless_python",
                **dict.fromkeys((2.0, 7.0), "stalled_collective"),
                **dict.fromkeys((10.0, 15.0, 19.0), "endless_python"),
            },
            {1.0, 7.0, 19.0},
        ),
        # A name at last, and none after one.
        ({1.0: "unknown", 2.0: "stalled_collective"}, {1.0, 2.0}),
        ({1.0: "stalled_collective", 2.0: "unknown", 60.0: "unknown"}, {1.0}),
    ],
)
def test_the_cause_of_a_hang_is_corrected_when_another_one_stands(
    found: dict[float, str | None], reported: set[float]
) -> None:
    """All of one line. The correction says which cause it replaces."""
    told: list[News] = []
    teller = Teller(session(), None, told.append)
    for at, cause in found.items():
        teller.tell(said("hung" if cause else "inconclusive", cause, frame="negative (mining.py:15)"), at)
    causes = [one.verdict.cause for one in told if one.verdict]

    assert {one.at for one in told} == reported
    assert [one.verdict.supersedes for one in told if one.verdict] == [None, *causes[:-1]]


def test_a_hang_at_another_place_is_reported_at_once() -> None:
    """Its cause is another one, and so is its line."""
    told: list[News] = []
    teller = Teller(session(), None, told.append)
    teller.tell(said("hung", "endless_python", frame="negative (mining.py:15)"), 1.0)
    teller.tell(said("hung", "stalled_collective", frame="read (store.py:9)"), 2.0)

    assert [one.at for one in told] == [1.0, 2.0]


def test_corrections_of_one_hang_become_rarer() -> None:
    """Two rules that alternate for a day, a minute each, are reported a few times."""
    told: list[News] = []
    teller = Teller(session(), None, told.append)
    for at in range(24 * 3600):
        teller.tell(
            said("hung", ("endless_python", "stalled_collective")[at // 60 % 2], frame="f (a.py:15)"), float(at)
        )

    assert len(told) == 5


def test_slowness_that_comes_and_goes_is_told_once_and_taken_back_when_it_has_stayed_away() -> None:
    """Checkpoints every 15 s: a window of samples holds now two of them, now one."""
    told: list[News] = []
    teller = Teller(session(), None, told.append)
    for at in (10.0, 25.0, 40.0):
        teller.tell(said("slow", "slow_checkpoint"), at)
        teller.tell(said("healthy", "cpu_training"), at + 2.0)
    teller.tell(said("healthy", "cpu_training"), 84.0)
    teller.tell(said("healthy", "cpu_training"), 86.0)

    assert [(one.kind, one.at) for one in told] == [("verdict", 10.0), ("retraction", 86.0)]


def test_what_came_back_late_must_stay_away_twice_as_long() -> None:
    """Sleeps between two tries of which one round in a minute is made."""
    told: list[News] = []
    teller = Teller(session(), None, told.append)
    for at in (10.0, 70.0):
        teller.tell(said("slow", "retrying"), at)
    for at in (120.0, 180.0, 191.0):
        teller.tell(said("healthy", "balanced"), at)

    assert [(one.kind, one.at) for one in told] == [("verdict", 10.0), ("retraction", 191.0)]


def test_two_slow_causes_that_take_turns_are_told_once_each() -> None:
    """Ranks that wait for each other while their steps become longer."""
    told: list[News] = []
    teller = Teller(session(), None, told.append)
    for at in (10.0, 30.0):
        teller.tell(said("slow", "straggling_rank"), at)
        teller.tell(said("slow", "regressed"), at + 10.0)

    assert [one.verdict.cause for one in told if one.verdict] == ["straggling_rank", "regressed"]


def test_slowness_that_is_still_found_beside_a_healthy_verdict_is_not_taken_back() -> None:
    """Steps as long as when it was told, but others take some of the CPUs: less sure, and no less slow."""
    told: list[News] = []
    teller = Teller(session(), None, told.append)
    teller.tell(said("slow", "regressed"), 10.0)
    unsure = Finding(cause="regressed", state="slow", summary="steps grow", confidence=0.55)
    for at in (20.0, 50.0, 80.0):
        teller.tell(verdict(state="healthy", cause="cpu_training", findings=(unsure,)), at)

    assert [one.at for one in told] == [10.0]


def test_slowness_that_a_long_phase_follows_is_taken_back_with_how_long_no_step_was_made() -> None:
    """Nobody waits for a CPU any more, and one step has lasted for a minute."""
    told: list[News] = []
    teller = Teller(session(), None, told.append)
    teller.tell(said("slow", "contended_cpu"), 10.0)
    teller.tell(said("busy", "computing_on_host"), 70.0, late_seconds=62.0)

    assert told[-1].text == "contended_cpu is over: no step for 62 s; it is busy"


def test_a_verdict_says_which_cause_it_replaces() -> None:
    """Whoever reads the events, or a webhook, need not look for the one before; a mere suspicion names no cause."""
    told: list[News] = []
    teller = Teller(session(), None, told.append)
    teller.tell(said("slow", "synchronising"), 10.0)
    teller.tell(said("hung", "endless_python"), 60.0)
    teller.tell(said("healthy", "balanced"), 90.0)
    teller.tell(said("inconclusive", None, SUSPECTED), 120.0)
    teller.tell(said("hung", "stalled_collective"), 150.0)
    superseded = [one.verdict.supersedes for one in told if one.verdict is not None]

    assert superseded == [None, "synchronising", "endless_python", "balanced", None]


def works(rank: int, at: str, silent_seconds: float | None = 25.0) -> Verdict:
    """Rank 1 waits, for itself or for another one."""
    return verdict(
        state="busy",
        cause="waiting_on_work",
        silent_seconds=silent_seconds,
        culprits=(Culprit(pid=700 + rank, rank=rank, frame=at),),
        wait_chain=(Link(pid=701, rank=1, waits_for="barrier"),),
    )


def heard(*verdicts: Verdict) -> list[int]:
    """Which of them were said."""
    here, there = Channel.pair()
    voice = Voice(here)
    found = []
    for number, one in enumerate(verdicts):
        voice.news(News("verdict", float(number), one.summary, one))
        found += [number] if there.receive() else []
    return found


@pytest.mark.parametrize(
    ("busy", "is_said"),
    [
        (works(0, "score (train.py:7)"), True),
        (works(1, "score (train.py:7)"), False),  # threads of its own
        (works(0, "build (train.py:9)", silent_seconds=None), False),  # nobody knows that they have waited for long
    ],
)
def test_work_is_said_where_other_ranks_wait_for_it(busy: Verdict, is_said: bool) -> None:
    """Who watches the terminal would otherwise see nothing move."""
    assert bool(heard(busy)) == is_said


def test_work_that_comes_back_is_said_once() -> None:
    """An evaluation after each epoch, but not another kind of work."""
    evaluation, export = works(0, "score (train.py:7)"), works(0, "export (train.py:9)")

    assert heard(evaluation, evaluation, works(0, "score (train.py:8)"), export) == [0, 3]


def test_a_good_end_is_left_to_the_summary() -> None:
    """The launcher prints it with the exit code, in one line; a crash is said at once, with its evidence."""
    good, bad = (verdict(state="gone", cause=cause) for cause in ("finished", "crashed"))

    assert heard(good, bad) == [1]
