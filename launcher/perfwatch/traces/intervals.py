"""Arithmetic on sets of time: sorted, disjoint (begin, end) pairs."""

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]
Intervals = list[Interval]


def union(intervals: Iterable[Interval]) -> Intervals:
    """Any intervals, as the set of time that they cover."""
    result: Intervals = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if result and begin <= result[-1][1]:
            if end > result[-1][1]:
                result[-1] = (result[-1][0], end)
        else:
            result.append((begin, end))
    return result


def overlap(one: Sequence[Interval], other: Sequence[Interval]) -> Intervals:
    """What two sets have in common."""
    result: Intervals = []
    first = second = 0
    while first < len(one) and second < len(other):
        begin = max(one[first][0], other[second][0])
        end = min(one[first][1], other[second][1])
        if begin < end:
            result.append((begin, end))
        if one[first][1] < other[second][1]:
            first += 1
        else:
            second += 1
    return result


def without(one: Sequence[Interval], other: Sequence[Interval]) -> Intervals:
    """The first set, less what the second covers."""
    result: Intervals = []
    second = 0
    for begin, end in one:
        while second < len(other) and other[second][1] <= begin:
            second += 1
        at = second
        while begin < end and at < len(other) and other[at][0] < end:
            if other[at][0] > begin:
                result.append((begin, other[at][0]))
            begin = max(begin, other[at][1])
            at += 1
        if begin < end:
            result.append((begin, end))
    return result


def length(intervals: Iterable[Interval]) -> float:
    """How much time a set covers."""
    return sum(end - begin for begin, end in intervals)
