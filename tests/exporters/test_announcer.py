"""What is posted: each change once, and not more than somebody can read."""

from perfwatch.exporters.announcer import MOST_AT_ONCE, REFILL_SECONDS, Announcer, Change
from tests.sessions import verdict


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        """The time that it shows."""
        return self.now


def posted(announcer: Announcer) -> tuple[str, str | None] | None:
    """State of the change that is due, and of the one before it."""
    change = announcer.due()
    return None if change is None else (change.verdict.state, change.before[0] if change.before else None)


def test_a_run_that_is_well_from_the_start_is_no_news() -> None:
    """Nor is the phase that it is in."""
    announcer = Announcer(Clock())
    for state in ("healthy", "busy", "healthy", "inconclusive"):
        announcer.hear(verdict(state=state, cause=None))

        assert posted(announcer) is None


def test_each_change_is_posted_once_and_so_is_the_recovery() -> None:
    """Hung, hung for another cause, well again."""
    announcer = Announcer(Clock())
    announcer.hear(verdict(state="hung", cause="stuck_worker"))
    announcer.hear(verdict(state="hung", cause="stuck_worker"))

    assert posted(announcer) == ("hung", None)
    assert posted(announcer) is None

    announcer.hear(verdict(state="hung", cause="dead_worker"))

    assert posted(announcer) == ("hung", "hung")

    announcer.hear(verdict(state="healthy", cause="balanced"))

    assert posted(announcer) == ("healthy", "hung")

    announcer.hear(verdict(state="busy", cause="checkpointing"))

    assert posted(announcer) is None


def test_what_was_taken_back_before_it_was_posted_is_no_news() -> None:
    """Only what holds now is."""
    announcer = Announcer(Clock())
    announcer.hear(verdict(state="slow", cause="regressed"))
    announcer.hear(verdict(state="healthy", cause=None))

    assert posted(announcer) is None


def test_a_flapping_job_does_not_drown_anybody_and_its_last_state_is_posted() -> None:
    """Slow and healthy every ten seconds for an hour."""
    clock = Clock()
    announcer = Announcer(clock)
    posts = []
    for turn in range(361):
        clock.now = 10.0 * turn
        announcer.hear(verdict(state="slow" if turn % 2 == 0 else "healthy", cause=None))
        posts += [change] if (change := announcer.due()) is not None else []
    clock.now += REFILL_SECONDS
    posts += [change] if (change := announcer.due()) is not None else []

    assert MOST_AT_ONCE < len(posts) <= MOST_AT_ONCE + 3600 / REFILL_SECONDS + 1
    assert posts[-1].verdict.state == "slow"


def test_the_kind_of_a_change_is_what_somebody_asks_for() -> None:
    """A good end after a hang is its recovery, so that whoever heard of the hang hears that it is over."""
    hung, crashed = ("hung", "stuck_worker"), ("gone", "crashed")
    for told, before, kind in (
        (hung, None, "hung"), (("slow", "regressed"), hung, "slow"), (crashed, None, "crashed"), (("gone", "killed"), hung, "crashed"),
        (("healthy", None), hung, "recovered"), (("busy", "compiling"), hung, "recovered"),
        (("gone", "finished"), None, "finished"), (("gone", "finished"), hung, "recovered"),
        (("gone", "finished"), ("healthy", None), "finished"),
    ):  # fmt: skip
        assert Change(verdict(state=told[0], cause=told[1]), before).kind == kind
