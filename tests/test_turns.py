"""Whose stacks are sampled next, where there are more processes than may be sampled at once."""

from perfwatch.watching.turns import FRESH_SECONDS, Turns

EVERY_SECONDS = 3.5
MOST = 6


def taken(ranks: int, others: int, turns: int) -> list[list[int]]:
    """Who is sampled in each turn; ranks are 1, 2, ..., the others 101, 102, ..."""
    chooser = Turns()
    first = list(range(1, ranks + 1))
    rest = list(range(101, 101 + others))
    return [chooser.take(first, first + rest, MOST, turn * EVERY_SECONDS) for turn in range(turns)]


def test_a_small_job_is_sampled_whole_each_time() -> None:
    """Two ranks with two workers each."""
    assert {frozenset(turn) for turn in taken(2, 4, 5)} == {frozenset({1, 2, 101, 102, 103, 104})}


def test_eight_ranks_are_seen_within_two_turns_and_their_workers_after_them() -> None:
    """As on a node of eight GPUs, with two workers for each rank."""
    turns = taken(8, 16, 3)

    assert turns[0] == [1, 2, 3, 4, 5, 6]
    assert turns[1] == [7, 8, 101, 102, 103, 104]
    assert turns[2] == [105, 106, 107, 108, 109, 110]


def test_a_few_ranks_are_in_every_turn() -> None:
    """However many work for them, and those have their turns all the same."""
    turns = taken(2, 20, 6)

    assert all({1, 2} <= set(turn) for turn in turns)
    assert len({pid for turn in turns for pid in turn}) == 22


def test_no_rank_is_left_out_for_long() -> None:
    """Whoever was not sampled lately comes before any worker."""
    seen: dict[int, list[float]] = {}
    for number, turn in enumerate(taken(8, 64, 40)):
        for pid in turn:
            seen.setdefault(pid, []).append(number * EVERY_SECONDS)

    for rank in range(1, 9):
        assert max(later - earlier for earlier, later in zip(seen[rank], seen[rank][1:], strict=False)) <= (
            FRESH_SECONDS + EVERY_SECONDS
        )
    assert len(seen) == 8 + 64


def test_who_has_gone_is_forgotten() -> None:
    """And a process that is new is sampled at once."""
    chooser = Turns()
    chooser.take([1], [2], MOST, 0.0)

    assert chooser.take([3], [1, 2, 4], 2, 1.0) == [3, 4]
