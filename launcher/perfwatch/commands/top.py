"""``perfwatch top``: a job live on a screen."""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from perfwatch.attach.asked import Container, Pod, Slurm
from perfwatch.options import Argument, Option

BEGINNING_SECONDS = 15.0  # what a watch that has just begun takes to say how a healthy or slow job is


def top(
    target: Annotated[
        str | None,
        Argument(
            "[PID|PATTERN|SESSION]",
            help="Any process of the job, a part of its command line, or a recording; by default the only job, "
            "else the newest recording.",
            no_option=("--pid", "-p"),
        ),
    ] = None,
    slurm: Slurm = None,
    pod: Pod = None,
    container: Container = None,
    once: Annotated[bool, Option("--once", help="Print one screen and exit, as in a pipe.")] = False,
) -> None:
    """Show a job live.

    The verdict and the countdown of a suspicion, the steps, what each GPU really does, the ranks and workers with their
    present line, and the pressure on the machine. A recording is followed and never changed; a job without a watcher
    is watched for as long as the screen is open. ? shows the keys; Tab shows the next job that is watched here.

    \b
    Examples:
      perfwatch top                     the only job here
      perfwatch top 4242                the job of this process
      perfwatch top train.py            the job with this in its command line
      perfwatch top SESSION --once | head -20
    """
    import os

    from perfwatch.report.console import console
    from perfwatch.top.errands import errands_of, next_watched
    from perfwatch.top.follow import Follower
    from perfwatch.top.keyboard import Keyboard
    from perfwatch.top.viewing import Viewer

    with ExitStack() as stack:
        shown = _opened(target, slurm, pod, container, os.environ, stack)
        errands = errands_of(shown.folder, shown.control)
        errands.say(shown.note)
        viewer = Viewer(Follower(shown.folder), console(sys.stdout), errands, others=next_watched)
        if once or not sys.stdout.isatty():
            console(sys.stdout).print(viewer.once(BEGINNING_SECONDS if shown.begun else 0.0), end="")
            return
        with Keyboard() as keyboard:
            viewer.run(keyboard)


@dataclass(frozen=True)
class _Shown:
    """A recording to follow.

    Attributes:
        folder: the session.
        control: the socket of its watcher, if it is one of ours.
        begun: True if the watch has begun just now.
        note: what is said beside the keys; empty: nothing.
    """

    folder: Path
    control: Path | None = None
    begun: bool = False
    note: str = ""


def _opened(
    target: str | None,
    slurm: int | None,
    pod: str | None,
    container: str | None,
    environ: Mapping[str, str],
    stack: ExitStack,
) -> _Shown:
    """What is meant; a watch that begins for it ends with ``stack``.

    Raises:
        NoSuchTarget: there is neither such a job nor such a recording.
        SessionUnreadable: what was named cannot be read as a recording.
        UsageError: several jobs are meant.
    """
    from perfwatch.attach.asked import process
    from perfwatch.errors import NoSuchTarget, SessionUnreadable
    from perfwatch.processes.control import find_watcher, find_watcher_of_root, watching
    from perfwatch.recording.finding import find_session
    from perfwatch.text import say
    from perfwatch.top.asking import session_of
    from perfwatch.top.started_watch import StartedWatch
    from perfwatch_probes.deadline import KillableChild

    child = KillableChild()
    stack.callback(child.close)
    by_name = any(one is not None for one in (slurm, pod, container))
    if target is not None and not target.isdecimal() and not by_name:
        try:
            if (folder := find_session(target, environ, child)).is_dir():
                return _Shown(folder, watching(folder))
        except SessionUnreadable:
            if Path(target).is_dir():
                raise
    try:
        pid = process(target, slurm, pod, container, "perfwatch top")
    except NoSuchTarget as error:
        if target is None and not by_name:
            folder = find_session(None, environ, child)
            return _Shown(folder, watching(folder))
        advice = f"{error.advice}\nperfwatch sessions lists the recordings" if target is not None else error.advice
        raise NoSuchTarget(error.message, advice) from None
    control = find_watcher(pid)
    if control is not None and (session := session_of(control)) is not None:
        return _Shown(Path(session), control)
    roots, note = find_watcher_of_root(pid), ""
    if roots is not None:
        folder_of_root, why = _of_root(roots)
        if folder_of_root is not None:
            return _Shown(folder_of_root)
        note = f"root watches this job too{why}; this watch ends with the screen"
        say(sys.stderr, note)
    return _Shown(stack.enter_context(StartedWatch(pid)).folder, begun=True, note=note)


def _of_root(control: Path) -> tuple[Path | None, str]:
    """The recording of root's watcher, if this user may read it; else what to say of that."""
    from perfwatch.attach.relayed import readable_session
    from perfwatch.processes.control import ask
    from perfwatch.top.asking import ANSWER_SECONDS

    try:
        session = ask(control, {"command": "status"}, ANSWER_SECONDS, of_root=True).get("session")
    except (OSError, ValueError):
        return None, ""
    return readable_session(Path(session) if session else None)
