"""The time of a scan is shared between users."""

from perfwatch.daemon.shares import Shares


class Clock:
    """A clock that the work moves."""

    now = 0.0

    def __call__(self) -> float:
        """The time that it shows."""
        return self.now


def test_a_user_whose_processes_are_slow_to_read_delays_its_own_alone() -> None:
    """Of 100 that take a second each one is read, and all of the other user's."""
    clock = Clock()
    shares, read = Shares(clock), []

    for uid in shares.turns({1001: [1001] * 100, 1002: [1002] * 50}, 1.0):
        clock.now += 1.0 if uid == 1001 else 0.001
        read.append(uid)

    assert (read.count(1001), read.count(1002)) == (1, 50)


def test_what_was_used_before_counts_at_the_next_round() -> None:
    """A user that is new goes first."""
    clock = Clock()
    shares = Shares(clock)
    for _ in shares.turns({1001: list(range(100))}, 1.0):
        clock.now += 0.1

    order = list(shares.turns({1001: ["old"] * 3, 1002: ["new"] * 3}, 1.0))

    assert order == ["new"] * 3 + ["old"] * 3
