"""Who brings what a thread waits for, by the text of the lines: who puts into that queue, signals that event, gives back that semaphore."""

from collections.abc import Iterable, Iterator

from perfwatch.triage.history import History
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.code import line_of
from perfwatch.triage.words.frames import user_frames

_SIGNALS = ("set", "notify", "notify_all")
# By the method that waits: those of the same object that let it go on (CPython: queue, threading).
LET_GO_ON = {
    "get": ("put", "put_nowait"),
    "put": ("get", "get_nowait"),
    "join": ("task_done",),
    "wait": _SIGNALS,
    "wait_for": _SIGNALS,
    "acquire": ("release",),
}


def bringers(history: History, node: Node, others: Iterable[Node]) -> list[Node]:
    """Of the threads beside one that waits, those in a function that lets it go on: what that calls bears the name of what it asks.

    ``feed.out.get()`` of one and ``self.out.put(fetch())`` of the other. Whoever asks for the same thing waits as well.
    """
    asked = frozenset(_asked(history, node))
    wanted = {(name, call) for name, method in asked for call in LET_GO_ON[method]}
    return [one for one in others if wanted & _called(history, one) and not asked.intersection(_asked(history, one))]


def _asked(history: History, node: Node) -> Iterator[tuple[str, str]]:
    """The last part of the name of the object that a thread waits at, and the method."""
    line = line_of(history, node.frame)
    for name, method in _split(line.calls if line is not None else ()):
        if name and method in LET_GO_ON:
            yield name, method


def _called(history: History, node: Node) -> set[tuple[str, str]]:
    lines = (line_of(history, frame) for frame in user_frames(node.stack)) if node.stack is not None else ()
    return {call for line in lines if line is not None for call in _split((*line.calls, *line.loop_calls, *line.gives))}


def _split(calls: Iterable[str]) -> Iterator[tuple[str, str]]:
    for call in calls:
        owner, _, method = call.rpartition(".")
        yield owner.rpartition(".")[2], method
