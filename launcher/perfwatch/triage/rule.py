"""What a rule is: a cause, its sentences, and one function from a case to an outcome.

``judge`` sees the case and nothing else: no clock, no file, no process. It returns a Finding when it recognises its cause, an
Abstention when it might apply but lacks a reading, and None when the cause is not there. A rule gives facts, not prose; what is said of
them is a row of text, a ``Line``:

    CAUSE.line(
        the GPU waits for the host {waiting:.0%} of the time[, mostly at {at}]
        - saw schedstat: the training thread runs | {runs:.0%} of a core | waits for the GPU
        - not synchronising: only {syncs:.0%} of the samples wait for the card
        - next: perfwatch attach {pid} --watch
    )

First the summary; then what was seen (witness, claim, observed, expected), the causes that it is not, and what to do next. A ``{name}``
stands for a fact, and a part in square brackets is said if its facts are there. ``saw gpm of {name} if busy`` names the entity, which is
``pid {pid}`` otherwise, and the fact that it needs to be worth telling.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from shlex import quote
from string import Formatter
from typing import Any, NamedTuple

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.verdict import Alternative, Culprit, Evidence, Finding, Outcome
from perfwatch_probes.readings import Reading

Facts = dict[str, Any]  # what the names in sentences stand for
_PART = re.compile(r"\[([^][]*\{[^][]*)\]")  # of a sentence, that is left out if a fact in it is missing
_SAW = re.compile(r"(?P<witness>\S+?)(?: of (?P<of>.*?))?(?: if (?P<share>\w+))?: (?P<told>.*)")


class _Words(Formatter):
    """``str.format`` with more forms: ``{seconds:time}`` a time span, ``{seconds:step}`` one of a step, ``{fact:if}`` nothing, and
    ``{path:quote}`` a word of a shell.
    """  # fmt: skip

    def format_field(self, value: Any, form: str) -> str:
        """One fact in words."""
        if form in ("time", "step"):
            return duration(value, 3 if form == "step" else 2)
        if form == "quote":
            return quote(value)
        return "" if form == "if" else str(super().format_field(value, form))

    def has(self, part: str, known: Mapping[str, Any]) -> bool:
        """True if all facts of a part are there, and those of the form ``if`` are true."""
        parts = [(name, form) for _, name, form, _ in self.parse(part) if name]
        if any(known.get(name.partition(".")[0]) is None for name, _ in parts):
            return False
        fields = [(self.get_field(name, (), known)[0], form) for name, form in parts]
        return all(value not in (None, "") and (value or form != "if") for value, form in fields)


_WORDS = _Words()


def worded(text: str, known: Mapping[str, Any]) -> str:
    """A sentence with its facts in place of their names; ``[a part]`` with a fact in it is left out if that is missing."""
    whole = _PART.sub(lambda part: part[1] if _WORDS.has(part[1], known) else "", text)
    return _WORDS.vformat(whole, (), known)


class Saw(NamedTuple):
    """One observation in the words of a line: ``of`` is the entity, and ``share`` the fact that it needs to be worth telling."""

    witness: str
    claim: str
    observed: str
    expected: str = ""
    of: str = "pid {pid}"
    share: str = ""

    def said(self, known: Facts) -> tuple[str, str, str, str, str]:
        """Witness, entity, claim, observed and expected in words."""
        witness, of, claim, observed, expected = (
            worded(text, known) for text in (self.witness, self.of, self.claim, self.observed, self.expected)
        )
        return witness, of, claim, observed, expected


@dataclass(frozen=True)
class Cause:
    """The word for it, the state it belongs to, who usually owns the fix, and the readings without which the rule abstains."""

    name: str
    state: str
    owner: str
    needs: tuple[type[Reading], ...]
    also: tuple[str, ...] = ()  # words of its own for forms of it, which a verdict may name

    def line(self, text: str) -> "Line":
        """What is said of it, from a row of text. Raises ValueError for one that cannot be read."""
        summary, *rest = (" ".join(part.split()) for part in re.split(r"\n *- ", text))
        saw, but, then = [], [], []
        for part in rest:
            kind, _, said = part.partition(" ")
            if kind == "saw" and (head := _SAW.fullmatch(said)) is not None and head["told"].count(" | ") in (1, 2):
                of, share = head["of"] or "pid {pid}", head["share"] or ""
                saw.append(Saw(head["witness"], *head["told"].split(" | "), **{"of": of, "share": share}))
            elif kind == "not" and ": " in said:
                name, _, why = said.partition(": ")
                but.append((name, why))
            elif kind == "next:":
                then.append(said)
            else:
                raise ValueError(f"neither saw, not nor next: {part}")
        return Line(self, summary, tuple(saw), tuple(but), tuple(then))


@dataclass(frozen=True)
class Line:
    """What is said of a cause: sentences with ``{names}`` for facts, the causes that it is not, and what to do next.

    A sentence of which nothing is left is not said.
    """

    cause: Cause
    summary: str
    saw: tuple[Saw, ...] = ()
    but: tuple[tuple[str, str], ...] = ()
    next: tuple[str, ...] = ()

    def finding(
        self,
        case: Case,
        culprits: tuple[Culprit, ...],
        confidence: float,
        /,
        *,
        before: tuple[Evidence, ...] = (),
        more: tuple[Evidence, ...] = (),
        **facts: Any,
    ) -> Finding:
        """The finding with these facts; ``before`` and ``more`` is evidence that its sentences do not have."""
        known = {"pid": culprits[0].pid if culprits else 0, **facts}
        others = ((worded(name, known), worded(why, known)) for name, why in self.but)
        return Finding(
            cause=self.cause.name,
            state=self.cause.state,
            summary=worded(self.summary, known),
            confidence=confidence,
            owner=self.cause.owner,
            culprits=culprits,
            evidence=(*before, *self.seen(case, known), *more),
            alternatives=tuple(Alternative(cause=name, refuted_by=why) for name, why in others if why),
            next=tuple(filter(None, (worded(text, known) for text in self.next))),
        )

    def seen(self, case: Case, known: Facts) -> tuple[Evidence, ...]:
        """The evidence that its sentences have."""
        return tuple(case.saw(*one.said(known)) for one in self.saw if not one.share or known.get(one.share))


@dataclass(frozen=True)
class Rule:
    """One cause and how it is recognised. ``explain/CAUSE.md`` says it to users."""

    cause: Cause
    judge: Callable[[Case], Outcome]
