"""``perfwatch attach``: one verdict about a job that already runs, without preparation."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from perfwatch.attach.asked import Container, Pod, Slurm
from perfwatch.errors import EXIT_CODES, UsageError
from perfwatch.exporters.options import AskedOutlets
from perfwatch.exporters.wanted import Wanted
from perfwatch.gate import DescribedModel, MinMfu, Model, checked, gated
from perfwatch.hang_timeout import HANG_TIMEOUT_SECONDS
from perfwatch.options import Argument, Exit, Json, Option, typed
from perfwatch.watching.options import HangTimeout, JsonVersion

if TYPE_CHECKING:
    from perfwatch.recording.recording import Sink
    from perfwatch.recording.session import Session
    from perfwatch.verdict import Verdict


def attach(
    target: Annotated[
        str | None,
        Argument(
            "[PID|PATTERN|SESSION]",
            help="Any process of the job, a part of its command line, its directory or its recording; the only job by default.",
            no_option=("--pid", "-p"),
        ),
    ] = None,
    slurm: Slurm = None,
    pod: Pod = None,
    container: Container = None,
    watch: Annotated[bool, Option("--watch", "-w", help="Stay, and report every change.")] = False,
    json: Json = False,
    json_version: JsonVersion = 2,
    patience: HangTimeout = HANG_TIMEOUT_SECONDS,
    session: Annotated[
        str | None, Option("--session", "-s", metavar="DIR", help="Where to keep the recording.")
    ] = None,
    fresh: Annotated[
        bool, Option("--fresh", help="Sample the job anew, even if a watcher or daemon knows it already.")
    ] = False,
    without_stacks: Annotated[
        bool, Option("--without-stacks", help="Judge without stacks, where the job's memory may not be read.")
    ] = False,
    described: DescribedModel = Model,
    min_mfu: MinMfu = None,
    asked: AskedOutlets = Wanted,
) -> None:
    """Say why a running job makes no progress.

    Is it hung, slow, busy or healthy? Names the cause and the culprit.

    The job needs no preparation and is never stopped. The exit code tells the state: 0 healthy, 10 busy, 20 slow,
    30 hung, 40 finished, 41 crashed or killed, 50 inconclusive, 60 below --min-mfu, 3 no such process, 77 permission
    denied.

    If your own perfwatch run, daemon or attach --watch, or a daemon of root, watches the job already, its verdict is printed.

    \b
    Examples:
      perfwatch attach                      the only training job here
      perfwatch attach 4242
      perfwatch attach train.py
      sudo perfwatch attach --slurm 4711
      perfwatch attach 4242 --json | jq .summary
      perfwatch attach 4242 --watch
      perfwatch attach 4242 --watch --metrics-port 9123 --notify @webhook
      perfwatch attach 4242 --watch --metrics-socket ~/.perfwatch/metrics
      perfwatch attach 4242 --params 8e9 --tokens-per-step 4e6 --min-mfu 35
    """
    from functools import partial

    from perfwatch.attach.asked import may_be_read, process
    from perfwatch.text import duration
    from perfwatch.watching.status_line import StatusLine

    pid = process(target, slurm, pod, container)  # before anything heavy is loaded: it may be gone
    outlets = asked() if watch else Wanted()  # settings are for those that stay
    if not watch and any(map(typed, ("metrics_port", "metrics_socket", "otlp", "notify", "heartbeat", "on_verdict"))):
        raise UsageError(
            "--metrics-port, --otlp, --notify and --on-verdict need --watch", f"perfwatch attach {pid} --watch"
        )

    model = checked(described(), min_mfu)
    status = StatusLine(sys.stderr)
    seen = Path(f"/proc/{pid}").exists() and (without_stacks or may_be_read(pid, f"perfwatch attach {pid}"))
    if seen and not watch:  # before what takes a second to load
        from perfwatch.watching.when_to_stop import UNCLEAR_SECONDS

        most = f"up to {duration(UNCLEAR_SECONDS)}"
        if patience > UNCLEAR_SECONDS:
            most += f", or up to {duration(patience)} for a wait that can end on its own"
        status.begin(f"attaching to pid {pid}: the verdict takes {most}")

    from perfwatch.attach.attached import Attached
    from perfwatch.attach.relayed import ask_watcher
    from perfwatch.exporters.exporters import Outlets, opened_outlets
    from perfwatch.processes.stop_signals import Leaving
    from perfwatch.report.json import as_json
    from perfwatch.report.verdicts import possible_here, print_verdict
    from perfwatch.text import clean, say

    def show(verdict: "Verdict", folder: Path | None) -> None:
        status.clear()
        verdict = possible_here(verdict)
        try:
            if json:
                print(as_json(verdict, json_version), flush=True)
            else:
                print_verdict(verdict, sys.stdout, folder)
        except BrokenPipeError:
            raise
        except OSError:  # a full disk: the verdict is not lost with it
            print_verdict(verdict, sys.stderr, folder)
            raise

    def opened(session: "Session", folder: Path | None, recorder: "Sink | None") -> Outlets:
        return opened_outlets(outlets, session, folder, recorder, partial(say, sys.stderr))

    with status, Leaving() as leaving:
        known = None
        if not (fresh or watch or session or model):
            known = ask_watcher(pid, patience if typed("patience") else None, leaving, status)
        if known is not None:
            verdict, folder = known
            show(verdict, folder)
        else:
            attached = Attached(
                pid,
                leaving,
                session=session,
                patience_seconds=patience,
                model=model,
                outlets=opened if outlets else None,
                needs_memory="" if without_stacks else f"perfwatch attach {pid}",
            )
            try:
                verdict = attached.stay(sys.stderr) if watch else attached.decide(sys.stderr, status)
                folder = attached.folder
                show(verdict, folder)  # before the recording is completed: a disk may hang
            finally:
                loss = attached.close()
            if loss:
                print(f"perfwatch: {clean(loss)}", file=sys.stderr)
    code, said = gated(verdict, min_mfu)
    if said:
        print(f"perfwatch: {said}", file=sys.stderr)
    if code == EXIT_CODES["gate_failed"]:
        from perfwatch.report.headroom import print_headroom

        print_headroom(folder, sys.stderr)
    raise Exit(code)
