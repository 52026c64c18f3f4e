"""Attach to a job that a perfwatch of ours, or of root, watches already: that watcher, which knows it for longer, is asked."""

import os
import time
from pathlib import Path

import msgspec

from perfwatch.processes.control import ask, find_watcher, find_watcher_of_root
from perfwatch.processes.stop_signals import Leaving
from perfwatch.recording.recording import load
from perfwatch.text import duration
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Verdict
from perfwatch.watching.status_line import StatusLine, leaning
from perfwatch.watching.when_to_stop import LONGER_SECONDS, UNCLEAR_SECONDS, OneShot
from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.probe import Unavailable

ANSWER_SECONDS = 5.0  # a round of looks takes 2 s at most
EVERY_SECONDS = 1.0  # as often as the watcher itself judges
COMPLETION_SECONDS = 3.0  # what a watcher whose job has ended may take to complete the recording
LOAD_SECONDS = 10.0  # a full session of 256 MiB


def ask_watcher(
    pid: int, patience_seconds: float | None, leaving: Leaving, status: StatusLine
) -> tuple[Verdict, Path | None] | None:
    """The watcher's verdict once it is clear, and where its recording lies, if it may be read.

    None when no watcher has this process, or with another hang timeout, or the watcher does not answer: then look ourselves.
    A watcher of root tells the job's user what it knows, and does nothing for it.
    patience_seconds: the hang timeout that was asked for; None: that of the watcher.
    """
    control = find_watcher(pid)
    of_root = control is None
    if control is None and (control := find_watcher_of_root(pid)) is None:
        return None
    shot, began = OneShot(), time.monotonic()
    folder: Path | None = None
    judged = False
    try:
        facts = ask(control, {"command": "status"}, ANSWER_SECONDS, of_root)
        if patience_seconds not in (None, facts.get("patience_seconds")):
            return None
        folder = Path(facts["session"]) if facts.get("session") else None
        mode, since = facts.get("mode", "run"), duration(facts.get("elapsed_seconds"))
        if of_root:
            folder, unreadable = readable_session(folder)
            status.begin(
                f"asking root's perfwatch {mode}, which has watched this job for {since}{unreadable}; --fresh samples anew"
            )
        else:
            status.begin(f"asking the perfwatch {mode} that has watched this job for {since}; --fresh samples anew")
        # What it has seen counts; from now on it samples closely, and that takes a moment to tell.
        shot.started_at = -min(float(facts.get("elapsed_seconds") or 0.0), UNCLEAR_SECONDS - LONGER_SECONDS)
        while True:
            answer = ask(control, {"command": "verdict", "attend": not of_root}, ANSWER_SECONDS, of_root)
            verdict = msgspec.convert(answer["verdict"], Verdict)
            judged = True
            at = time.monotonic() - began
            if shot.done(verdict, at) or leaving.asked:
                return verdict, folder
            status.now(leaning(verdict, shot.left(verdict, at)))
            leaving.wait(EVERY_SECONDS)
    except (OSError, ValueError, LookupError):  # gone, late, or of another version
        last = _last_words(folder) if judged and folder is not None else None
        return None if last is None else (last, folder)


def readable_session(folder: Path | None) -> tuple[Path | None, str]:
    """The recording of root's watcher if this user may read it; else None, and what to say of that."""
    if folder is not None and os.access(folder, os.R_OK | os.X_OK):
        return folder, ""
    return None, "; you may not read its recording, unless it runs with --readable-by"


def _last_words(folder: Path) -> Verdict | None:
    """What the recording says of a job that ended while we asked; None when it does not say that it ended."""
    child, ends = KillableChild(), time.monotonic() + COMPLETION_SECONDS
    try:
        while (verdict := child.call(_outcome, folder, deadline_seconds=LOAD_SECONDS)) is None:
            if time.monotonic() > ends:
                return None
            time.sleep(0.1)
        return verdict
    except Unavailable:
        return None
    finally:
        child.close()


def _outcome(folder: Path) -> Verdict | None:
    """Runs in the child."""
    recording = load(folder)
    ended = any(event.kind == "outcome" for event in recording.events)
    return diagnose(recording) if ended else None
