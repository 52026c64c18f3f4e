"""Which moment of a recording is meant: the last living one, the end where that is the story, or what the user typed."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import structs

from perfwatch.errors import SessionUnreadable, UsageError
from perfwatch.recording.finding import find_sessions
from perfwatch.recording.recording import Event, Recording, load_session
from perfwatch.text import command_line, duration, say
from perfwatch.verdict import Verdict, possible_after
from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.readings import ProcessEnded

PRINTED_SECONDS = 0.999  # that a printed time may lie before what it tells of
LASTING = ("hung", "slow", "busy")  # states that have a beginning and an end
_FRACTION = re.compile(r"\.\d+")
EXPLAINS_THE_END = ("hung",)  # states of a living job after which its end is no news


class Judged(Protocol):
    """A recording judged at one moment."""

    @property
    def verdict(self) -> Verdict: ...  # noqa: D102


J = TypeVar("J", bound=Judged)


def told_first(recording: Recording, judged: Callable[[float], J]) -> tuple[J, Verdict | None]:
    """What is told of a recording, and what is told beside it, if anything.

    The last verdict on the living job; but where the job then crashed or was killed and that verdict does not say why, its end,
    and that verdict beside it. A job that ended well before anything could be said of it has ended well.

    Args:
        recording: all of it.
        judged: judges it so many seconds after its start.
    """
    living = judged(last_living_moment(recording))
    if living.verdict.state == "busy" and _ended(recording) is not None:
        last = judged(last_alive(recording))  # a phase that had ended by then; that it had is no news of its own
        living = living if last.verdict.state == "busy" else last
    if living.verdict.state in EXPLAINS_THE_END or _ended(recording) is None:
        return living, None
    end = judged(recording.end)
    ended_well = end.verdict.cause == "finished"
    unknown = living.verdict.state == "inconclusive" and living.verdict.suspect is None
    if end.verdict.state != "gone" or (ended_well and not unknown):
        return living, None
    return end, None if ended_well or living.verdict.state == "gone" else living.verdict


def lasts(recording: Recording, at: float, verdict: Verdict) -> str:
    """From when until when the state of a verdict lasted: ``from 05:19:25 until the job ended (4 min 52 s)``; times are UTC.

    Empty where a verdict is on an end, or claims nothing.

    Args:
        recording: all of it.
        at: when the verdict was made, in seconds after the start.
    """
    if verdict.state not in LASTING:
        return ""
    events = [one for one in recording.events if one.kind in ("verdict", "retraction")]
    before = [one for one in events if one.at <= at]
    others = (one.at for one in before if one.kind == "retraction" or _state(one) != verdict.state)
    since = max(others, default=0.0)
    first = min((one.at - _silent(one.verdict) for one in before if one.at > since), default=at)
    begun = min(first, at - _silent(verdict))  # before the recording, where the kernel remembers
    changed = [one for one in events if one.at > at and (one.kind == "retraction" or _state(one) != verdict.state)]
    ended = _ended(recording)
    end = min([one.at for one in changed] + ([] if ended is None else [ended]), default=recording.end)
    if ended is not None and end >= ended:
        until = "until the job ended"
    else:
        until = f"until {_clock(recording, end)}" if changed else "until the end of the recording"
    day = (
        ""
        if _moment(recording, begun).date() == _moment(recording, end).date()
        else f"{_moment(recording, begun):%Y-%m-%d} "
    )
    return f"from {day}{_clock(recording, begun)} {until} ({duration(max(0.0, end - begun))})"


def _state(event: Event) -> str:
    return event.verdict.state if event.verdict is not None else ""


def _silent(verdict: Verdict | None) -> float:
    return (verdict.silent_seconds or 0.0) if verdict is not None else 0.0


def _clock(recording: Recording, at: float) -> str:
    return f"{_moment(recording, at):%H:%M:%S}"


def _moment(recording: Recording, at: float) -> datetime:
    return datetime.fromtimestamp(recording.session.created + at, timezone.utc)


def meant(argument: str | None, command: str, why: str = "") -> Path:
    """The session that the user means. Of one that was not named it says which, and what would take another, before it is read.

    Args:
        argument: as it was typed.
        command: what is typed before the name of another.
        why: said first, of one that was not named.

    Raises SessionUnreadable as ``find_session`` does.
    """
    child = KillableChild()
    try:
        folder, *others = find_sessions(argument, os.environ, child)
    finally:
        child.close()
    if argument is None:
        say(sys.stderr, f"{why}this is the newest session, {folder.name}: {_about(folder)}")
        another = "SESSION    # perfwatch sessions lists them"
        with suppress(SessionUnreadable, PermissionError):  # it is only named here
            another = f"{others[0].name}    # {_about(others[0])}" if others else another
        say(sys.stderr, f"for another one: {command} {another}")
    return folder


def _about(folder: Path) -> str:
    """``python train.py, begun 3 min ago``. Raises SessionUnreadable."""
    session = load_session(folder)
    what = command_line(session.command)[:60] or session.mode
    return f"{what}, begun {duration(max(0.0, time.time() - session.created))} ago"


def last_living_moment(recording: Recording) -> float:
    """When the last verdict on the living job was made; the last moment before the end where none was, or none still
    held.

    In seconds since the session began.
    """
    told = last_told(recording.events)
    return last_alive(recording) if told is None else told


def last_told(events: Iterable[Event]) -> float | None:
    """When the last verdict on the living job was made that still held; None if none was."""
    verdict_at = None
    for event in events:
        if event.kind == "verdict" and (event.verdict is None or event.verdict.state != "gone"):
            verdict_at = event.at
        elif event.kind == "retraction":
            verdict_at = None
    return verdict_at


def last_alive(recording: Recording) -> float:
    """The last moment before the job's end, or that there is, in seconds since the session began."""
    ended = _ended(recording)
    if ended is None:
        return recording.end
    return max((record.at for record in recording.records if record.at < ended), default=ended)


def _ended(recording: Recording) -> float | None:
    """When the job was first seen to be gone."""
    outcomes = [event.at for event in recording.events if event.kind == "outcome"]
    deaths = [
        record.at
        for record in recording.records
        if isinstance(record.reading, ProcessEnded) and record.reading.pid in recording.session.root_pids
    ]
    return min(outcomes + deaths, default=None)


def of_its_time(recording: Recording, verdict: Verdict) -> Verdict:
    """A verdict as a reader can use it: without next steps that need the living job, where it has ended since."""
    return verdict if _ended(recording) is None else structs.replace(verdict, next=possible_after(verdict.next))


def parse_moment(text: str, recording: Recording) -> float:
    """Seconds since the session began, from seconds or from an ISO 8601 time (UTC unless it says otherwise).

    Times are printed in whole seconds: one without a fraction means all of its second, so that what was told in it is known.

    Raises:
        UsageError: neither of the two, or outside the recording.
    """
    created = recording.session.created
    try:
        at = float(text)
    except ValueError:
        try:
            # Python 3.10 reads fractions of three or six digits alone.
            six_digits = _FRACTION.sub(lambda found: f"{found[0]:0<7}"[:7], text)
            moment = datetime.fromisoformat(six_digits.replace("Z", "+00:00"))
        except ValueError:
            raise UsageError(
                f"--at {text!r} is not a time",
                "use seconds since the start (--at 120) or ISO 8601 (--at 2026-11-20T11:51:24Z)",
            ) from None
        at = (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp() - created
        if "." not in text and -1 < at <= recording.end:
            at = max(0.0, min(at + PRINTED_SECONDS, recording.end))
    if not 0 <= at <= recording.end + 1:
        first, last = (datetime.fromtimestamp(created + moment, timezone.utc) for moment in (0, recording.end))
        raise UsageError(
            f"--at {text} is outside the recording",
            f"it covers 0 to {duration(recording.end)} ({first:%Y-%m-%dT%H:%M:%SZ} to {last:%Y-%m-%dT%H:%M:%SZ})",
        )
    return at
