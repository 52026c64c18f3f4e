"""``perfwatch run``: start a command and watch it."""

from pathlib import Path
from typing import Annotated

from perfwatch.exporters.options import AskedOutlets
from perfwatch.exporters.wanted import Wanted
from perfwatch.gate import DescribedModel, Model
from perfwatch.hang_timeout import HANG_TIMEOUT_SECONDS
from perfwatch.options import Argument, OneOf, Option
from perfwatch.run.request import ARMS
from perfwatch.watching.options import HangTimeout

MORE = "Profilers and signals"
# Everything after the options belongs to the command, whatever it looks like.
CONTEXT_SETTINGS = {"allow_interspersed_args": False}


def run(
    command: Annotated[list[str], Argument(metavar="-- COMMAND...", help="What to run, as you would type it.")],
    agent: Annotated[
        bool,
        Option("--agent/--no-agent", panel=MORE, help="Count optimizer steps inside the job (a few hundred ns each)."),
    ] = True,
    quiet: Annotated[
        bool, Option("--quiet", "-q", help="Print nothing on stderr; the recording has everything.")
    ] = False,
    session: Annotated[
        Path | None, Option("--session", "-s", metavar="DIR", help="Where the recording goes; a local disk by default.")
    ] = None,
    patience: HangTimeout = HANG_TIMEOUT_SECONDS,
    trigger_signal: Annotated[
        str,
        Option(
            metavar="all|rt",
            kind=OneOf(("all", "rt")),
            panel=MORE,
            help="Signals that trigger a capture; rt leaves SIGUSR1 and SIGUSR2 to the job.",
        ),
    ] = "all",
    asked: AskedOutlets = Wanted,
    arm: Annotated[
        str,
        Option(
            metavar="PROFILER",
            kind=OneOf(ARMS),
            panel=MORE,
            help="The profiler to prepare in the job, where it sleeps until a capture: torch, nsys, ncu, ncu-attach or none.",
        ),
    ] = "torch",
    capture_on: Annotated[
        str,
        Option(metavar="slow,hung", panel=MORE, help="Make a capture when this is the verdict, three at most."),
    ] = "",
    described: DescribedModel = Model,
) -> None:
    """Start a command and watch it. Its input, output and exit code stay its own.

    Prints a line on stderr when something seems wrong, the verdict when it is certain, and a summary at the end. Signals
    are passed on to the job; SIGRTMIN+8 asks for a verdict now.

    \b
    Examples:
      perfwatch run -- python train.py
      perfwatch run -- torchrun --nproc-per-node 8 train.py
      srun -n8 perfwatch run -- python train.py   one watcher on each node
      perfwatch run --metrics-port 9123 --notify @webhook -- python train.py
      perfwatch run --metrics-port 9123 --metrics-token @token -- python train.py
      kill -RTMIN+8 $(pgrep -of 'perfwatch run')  a verdict now
      kill -RTMIN+9 $(pgrep -of 'perfwatch run')  a torch trace of a few steps
      perfwatch run --capture-on slow -- python train.py
      perfwatch run --params 8e9 --tokens-per-step 4e6 -- torchrun ... train.py
                                                  its model FLOPs utilisation
    """
    import os
    import sys

    from perfwatch.errors import UsageError
    from perfwatch.run import supervise
    from perfwatch.run.request import Request
    from perfwatch.settings import notes

    if arm.startswith("ncu") and not agent:
        raise UsageError(f"--arm {arm}: the agent opens its capture window", "leave out --no-agent")
    if capture_on:  # parsed here alone: the launcher does without the captures
        from perfwatch.captures.triggers import states

        on = states(capture_on)
    for one in notes() if not quiet else ():
        print(f"perfwatch: {one}", file=sys.stderr)
    request = Request(
        command=tuple(command),
        agent=agent,
        quiet=quiet,
        session=session.absolute() if session else None,
        patience_seconds=patience,
        trigger_signals=trigger_signal,
        outlets=asked(),
        arm=arm,
        capture_on=on if capture_on else (),
        model=described().conditions(),
    )
    supervise.run(request, os.environ)
