"""``perfwatch attach``: one verdict about a job that runs already, with no preparation of the job."""

import sys
from typing import Annotated

import typer


def attach(
    pid: Annotated[int, typer.Argument(help="Any process of the job: torchrun, a rank, a DataLoader worker.", min=1)],
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and report every change.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")] = False,
    patience: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=1.0, help="How long a wait that time may heal is given before it is called hung."
        ),
    ] = 60.0,
    session: Annotated[str | None, typer.Option(metavar="DIR", help="Where to keep the recording.")] = None,
) -> None:
    """Say why a running job makes no progress.

    Hung, slow, busy or healthy, why, and who is to blame.

    The job needs no preparation and is never stopped. The exit code tells the state: 0 healthy, 10 busy, 20 slow,
    30 hung, 40 finished, 41 crashed or killed, 50 inconclusive, 3 no such process, 77 permission denied.

    \b
    Examples:
      perfwatch attach 4242
      perfwatch attach 4242 --json | jq .summary
      perfwatch attach 4242 --watch
    """
    from perfwatch.attaching import Attached
    from perfwatch.report.exits import exit_code
    from perfwatch.report.json import as_json
    from perfwatch.report.plain import clean
    from perfwatch.report.verdicts import print_verdict

    attached = Attached(pid, session=session, patience_seconds=patience)
    try:
        verdict = attached.stay(sys.stderr) if watch else attached.decide(sys.stderr)
    finally:
        attached.close()
    if attached.loss:
        print(f"perfwatch: {clean(attached.loss)}", file=sys.stderr)
    if json:
        print(as_json(verdict))
    else:
        print_verdict(verdict, sys.stdout, attached.folder)
    raise typer.Exit(exit_code(verdict))
