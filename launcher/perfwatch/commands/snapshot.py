"""``perfwatch snapshot``: what ``perfwatch fleet`` runs on each host."""

from typing import Annotated

from perfwatch.hang_timeout import HANG_TIMEOUT_SECONDS
from perfwatch.options import Option, Seconds
from perfwatch.watching.options import HangTimeout


def snapshot(
    seconds: Annotated[
        float, Option(metavar="TIME", kind=Seconds(0.0, 600.0), help="How long to sample the jobs.")
    ] = 6.0,
    job: Annotated[str, Option(metavar="TEXT", help="Only jobs with this in their name, run id or command line.")] = "",
    patience: HangTimeout = HANG_TIMEOUT_SECONDS,
    scheduler: Annotated[str, Option(hidden=True, help="No job that says that it is another one of Slurm's.")] = "",
    nonce: Annotated[str, Option(hidden=True, help="Print lines for the one that asks, marked so.")] = "",
) -> None:
    """Print what perfwatch fleet needs of this machine.

    One JSON object: for each job its ranks, a compact session and this machine's own verdict. perfwatch fleet runs this on
    each host of a job and judges them together.

    \b
    Examples:
      perfwatch snapshot | jq '.jobs[].ranks'
      perfwatch snapshot --seconds 3
    """
    from perfwatch.errors import UsageError
    from perfwatch.fleet import clearing, looking, wire
    from perfwatch.processes.stop_signals import Leaving
    from perfwatch.text import json_text

    if nonce and not wire.NONCE.fullmatch(nonce):
        raise UsageError("--nonce takes 8 to 32 hexadecimal digits", "perfwatch fleet makes one itself")
    with Leaving() as leaving:
        found = looking.look(seconds, patience, job, leaving, scheduler)
    if nonce:
        print("\n".join(wire.lines(found, nonce)), flush=True)
    else:
        print(json_text(found), flush=True)
    clearing.tidy(found)
