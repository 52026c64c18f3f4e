"""``perfwatch run``: start a command and watch it."""

from pathlib import Path
from typing import Annotated

from perfwatch.exporters.options import MetricsCommand, MetricsPort, MetricsSocket, MetricsToken, Notify, wanted
from perfwatch.gate import Hidden, Layers, Model, Params, Sequence, TokensPerStep
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
    quiet: Annotated[bool, Option("--quiet", "-q", help="Say nothing on stderr; the session has it all.")] = False,
    session: Annotated[
        Path | None, Option("--session", "-s", metavar="DIR", help="Where the recording goes; a local disk by default.")
    ] = None,
    patience: HangTimeout = HANG_TIMEOUT_SECONDS,
    trigger_signal: Annotated[
        str,
        Option(
            metavar="all|rt", kind=OneOf(("all", "rt")), panel=MORE, help="rt: SIGUSR1 and SIGUSR2 are the job's alone."
        ),
    ] = "all",
    metrics_port: MetricsPort = None,
    metrics_socket: MetricsSocket = None,
    metrics_token: MetricsToken = None,
    metrics_command: MetricsCommand = False,
    notify: Notify = None,
    arm: Annotated[
        str,
        Option(
            metavar="PROFILER",
            kind=OneOf(ARMS),
            panel=MORE,
            help="Prepare the job for torch, nsys, ncu or ncu-attach, which sleeps until a capture; or none.",
        ),
    ] = "torch",
    capture_on: Annotated[
        str,
        Option(
            metavar="slow,hung", panel=MORE, help="Capture when the verdict says so: now and then, three times at most."
        ),
    ] = "",
    params: Params = None,
    tokens_per_step: TokensPerStep = None,
    layers: Layers = None,
    hidden: Hidden = None,
    sequence: Sequence = None,
) -> None:
    """Start a command and watch it. Its output, its input and its exit code are its own.

    One line on stderr when something seems wrong, the verdict when it is sure, a summary at the end. Signals for the
    job are passed on; SIGRTMIN+8 asks for a verdict now.

    \b
    Examples:
      perfwatch run -- python train.py
      perfwatch run -- torchrun --nproc-per-node 8 train.py
      srun -n8 perfwatch run -- python train.py   one of a node's watches
      perfwatch run --metrics-port 9123 --notify @webhook -- python train.py
      perfwatch run --metrics-port 9123 --metrics-token @token -- python train.py
      kill -RTMIN+8 $(pgrep -of 'perfwatch run')  what does it look like now?
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
        raise UsageError(f"--arm {arm}: it is the agent that opens the window", "leave out --no-agent")
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
        outlets=wanted(metrics_port, metrics_socket, metrics_token, metrics_command, notify),
        arm=arm,
        capture_on=on if capture_on else (),
        model=Model(params, tokens_per_step, layers, hidden, sequence).conditions(),
    )
    supervise.run(request, os.environ)
