"""``perfwatch top``: a job live on a screen."""

import sys
from typing import Annotated

from perfwatch.options import Argument, Option

BEGINNING_SECONDS = 15.0  # what a watch that has just begun takes to say how a healthy or slow job is


def top(
    target: Annotated[
        str | None,
        Argument("[SESSION|PID]", help="A recording, or any process of a job; the newest recording by default."),
    ] = None,
    once: Annotated[bool, Option("--once", help="Show one screen and leave, as into a pipe.")] = False,
) -> None:
    """Show a job live.

    The verdict and the countdown of a suspicion, the steps, what each GPU really does, the ranks and workers with their
    present line, and the pressure on the machine. A recording is followed and never touched; a job that is not watched yet
    is watched for as long as the screen is open. ? shows the keys; Tab goes to the next job that is watched here.

    \b
    Examples:
      perfwatch top                     the newest recording of this machine
      perfwatch top 4242                the job of this process
      perfwatch top SESSION --once | head -20
    """
    import contextlib
    import os
    from pathlib import Path

    from perfwatch.processes.control import find_watcher, watching
    from perfwatch.recording.finding import find_session
    from perfwatch.report.console import console
    from perfwatch.top.asking import session_of
    from perfwatch.top.errands import errands_of, next_watched
    from perfwatch.top.follow import Follower
    from perfwatch.top.keyboard import Keyboard
    from perfwatch.top.started_watch import StartedWatch
    from perfwatch.top.viewing import Viewer
    from perfwatch_probes.deadline import KillableChild

    with contextlib.ExitStack() as stack:
        control: Path | None = None
        begun = False
        if target is not None and target.isdecimal() and not Path(target).exists():
            control = find_watcher(int(target))
            session = None if control is None else session_of(control)
            begun = session is None
            folder = Path(session) if session else stack.enter_context(StartedWatch(int(target))).folder
        else:
            folder = find_session(target, os.environ, KillableChild())
            control = watching(folder)
        viewer = Viewer(Follower(folder), console(sys.stdout), errands_of(folder, control), others=next_watched)
        if once or not sys.stdout.isatty():
            console(sys.stdout).print(viewer.once(BEGINNING_SECONDS if begun else 0.0), end="")
            return
        with Keyboard() as keyboard:
            viewer.run(keyboard)
