"""The recording as a Perfetto trace: counters, thread states, stacks, events and verdicts on one timeline, for ui.perfetto.dev.

Perfetto's own protobuf messages (TracePacket with track events). Times are those of the recording, as unix time in nanoseconds.
A thread has two tracks below it: what state the kernel saw it in, and the frames that were sampled, outermost on top.
"""

from collections.abc import Sequence

from perfwatch.report.lanes import lanes_of
from perfwatch.report.marks import marks, states
from perfwatch.report.story import Story
from perfwatch.report.tracks import Tracks
from perfwatch.text import clean
from perfwatch.triage.history import History, Seen
from perfwatch.triage.job import Member
from perfwatch_probes import readings as r

MOST_FRAMES = 60
TOGETHER_SECONDS = 0.1  # samples closer than that are one slice as far as they agree
DUMP_SECONDS = 0.005  # a dump is a moment; a slice needs a length to be seen
STATES = {
    "R": "running", "S": "sleeping", "D": "uninterruptible", "T": "stopped", "t": "traced", "Z": "zombie", "I": "idle",
}  # fmt: skip


def as_trace(story: Story) -> bytes:
    """The whole trace, serialised."""
    tracks = Tracks(story.recording.session.created)
    _said(tracks, story)
    history = story.whole.history
    _counters(tracks, history)
    for member in sorted(story.whole.job.members.values(), key=lambda one: (one.rank is None, one.rank or 0, one.pid)):
        _process(tracks, history, member, story.recording.end)
    return tracks.serialised()


def _said(tracks: Tracks, story: Story) -> None:
    verdicts, events = tracks.track("verdicts"), tracks.track("events")
    for stretch in states(story):
        tracks.slice(verdicts, stretch.begun, stretch.ended, stretch.text, {"state": stretch.state})
    for mark in marks(story)[1:]:
        if mark.seconds > 0:
            # A track of its own: captures may overlap with each other, slices of one track may not.
            tracks.slice(tracks.track(mark.row), mark.at, mark.at + mark.seconds, mark.text)
        else:
            tracks.instant(events, mark.at, mark.text)


def _counters(tracks: Tracks, history: History) -> None:
    for lane in lanes_of(history):
        unit = {"share": "%", "seconds": "s", "watts": "W"}[lane.kind]
        for line in lane.lines[:1] if lane.kind == "seconds" else lane.lines:  # its lines are one, seen in two ways
            track = tracks.counter(lane.name if lane.kind == "seconds" else f"{lane.name}: {line.name}", unit)
            for at, value in line.points:
                tracks.count(track, at, 100 * value if lane.kind == "share" else value)


def _process(tracks: Tracks, history: History, member: Member, end: float) -> None:
    name = " ".join(member.process.command) or member.process.name
    whose = member.role if member.rank is None else f"rank {member.rank} {member.role}".removesuffix(" rank")
    process = tracks.process(member.pid, f"{whose}: {clean(name)[:200]}")
    keys = [key for kind in (r.Thread, r.Stack) for key in history.entities(kind) if key[0] == member.pid]
    for pid, tid in dict.fromkeys(keys):
        seen, stacks = history.series(r.Thread, pid, tid), history.series(r.Stack, pid, tid)
        called = seen[-1].reading.name if seen else stacks[-1].reading.thread
        thread = tracks.thread(process, pid, tid, clean(called))
        if seen:
            _states(tracks, tracks.track("state", thread), seen, end)
        if stacks:
            _stacks(tracks, tracks.track("stack", thread), stacks)


def _states(tracks: Tracks, track: int, seen: Sequence[Seen[r.Thread]], end: float) -> None:
    """A state lasts until another is seen: threads are written on change."""
    begun, said = seen[0].at, _state(seen[0].reading)
    for one in seen[1:]:
        if _state(one.reading) != said:
            tracks.slice(track, begun, one.at, said)
            begun, said = one.at, _state(one.reading)
    tracks.slice(track, begun, max(end, seen[-1].at), said)


def _state(thread: r.Thread) -> str:
    name = STATES.get(thread.state, clean(thread.state))
    return f"{name}: {thread.wait.call} ({thread.wait.kind})" if thread.wait is not None else name


def _stacks(tracks: Tracks, track: int, stacks: Sequence[Seen[r.Stack]]) -> None:
    """Frames as nested slices: what two samples in a row have in common goes on, from the outermost frame inwards."""
    open_frames: list[str] = []
    ended = 0.0
    for one in stacks:
        begins = one.at - one.reading.span_seconds
        names = [clean(f"{f.function} ({f.file}:{f.line})") for f in reversed(one.reading.frames[-MOST_FRAMES:])]
        kept = 0
        if begins - ended <= TOGETHER_SECONDS:
            begins = max(begins, ended)
            while kept < min(len(names), len(open_frames)) and names[kept] == open_frames[kept]:
                kept += 1
        for _ in open_frames[kept:]:
            tracks.end(track, ended if kept == 0 else begins)
        del open_frames[kept:]
        for name in names[kept:]:
            tracks.begin(track, begins, name)
            open_frames.append(name)
        ended = max(one.at, begins + DUMP_SECONDS)
    for _ in open_frames:
        tracks.end(track, ended)
