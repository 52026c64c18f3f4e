"""``perfwatch fleet``: one verdict for a job on many hosts."""

import sys
from typing import TYPE_CHECKING, Annotated

from perfwatch.hang_timeout import HANG_TIMEOUT_SECONDS
from perfwatch.options import Exit, Json, Option, Seconds
from perfwatch.watching.options import HangTimeout

if TYPE_CHECKING:
    from perfwatch.fleet.engine import Engine


def fleet(
    hosts: Annotated[str, Option(metavar="a,b[1-4]", help="Hosts to reach by ssh: a ClusterShell node set.")] = "",
    slurm: Annotated[str, Option(metavar="JOBID", help="The nodes of a Slurm job, by srun --overlap.")] = "",
    kubernetes: Annotated[str, Option(metavar="SELECTOR", help="Pods with these labels, by kubectl exec.")] = "",
    job: Annotated[
        str, Option(metavar="TEXT", help="Which job, if there are several: part of its name, run id or command line.")
    ] = "",
    json: Json = False,
    seconds: Annotated[
        float, Option(metavar="TIME", kind=Seconds(1.0, 300.0), help="How long each host samples the job.")
    ] = 6.0,
    deadline: Annotated[
        float | None, Option(metavar="TIME", kind=Seconds(1.0), help="How long to wait for the answer of a host.")
    ] = None,
    patience: HangTimeout = HANG_TIMEOUT_SECONDS,
    session: Annotated[str | None, Option(metavar="DIR", help="Where to keep the recording.")] = None,
    command: Annotated[str, Option(metavar="COMMAND", help="The perfwatch command on the hosts.")] = "",
    options: Annotated[
        str, Option(metavar="OPTIONS", help="More options for ssh or kubectl, e.g. '--namespace training'.")
    ] = "",
) -> None:
    """Say why a job on many hosts makes no progress.

    Samples the job on all its hosts at once, for some seconds, and prints one verdict: which rank all others wait for, on
    which host, in which worker, at which line. A host that does not answer is part of the evidence.

    The exit code tells the state, as for perfwatch attach.

    \b
    Examples:
      perfwatch fleet --hosts 'node-a,node-b[1-4]'
      perfwatch fleet --hosts @slurmjob:4242 --job 'run 7'
      perfwatch fleet --slurm 4242 --json | jq .verdict.culprits
      perfwatch fleet --kubernetes job-name=train --options '--namespace training'
    """
    from perfwatch.fleet.asking import Question
    from perfwatch.fleet.keeping import keep
    from perfwatch.fleet.report import FleetReport, as_json
    from perfwatch.fleet.staying import until_clear
    from perfwatch.report.exits import exit_code
    from perfwatch.text import clean

    engine = _engine(hosts, slurm, kubernetes, command, options)
    outcome = until_clear(engine, Question(seconds, patience, job, deadline), sys.stderr)
    if json:
        print(as_json(outcome), flush=True)
    else:
        from perfwatch.report.console import console

        console(sys.stdout).print(FleetReport(outcome))
    folder, loss = keep(session, outcome.merged, outcome.said, outcome.verdict)
    if folder is not None and not json:
        print(f"recorded in {folder}")
    if loss:
        print(f"perfwatch: {clean(loss)}", file=sys.stderr)
    raise Exit(exit_code(outcome.verdict))


def _engine(hosts: str, slurm: str, kubernetes: str, command: str, options: str) -> "Engine":
    import shlex

    from perfwatch.errors import UsageError

    if sum(map(bool, (hosts, slurm, kubernetes))) != 1:
        raise UsageError(
            "name the hosts of the job in one way",
            "perfwatch fleet --hosts a,b[1-4], or --slurm JOBID, or --kubernetes SELECTOR",
        )
    try:
        called, more = shlex.split(command) or None, shlex.split(options)
    except ValueError as error:
        raise UsageError(f"--command or --options: {error}", "check the quotes") from None
    if hosts:
        from perfwatch.fleet.over_ssh import OverSsh

        return OverSsh(hosts, called, options)
    if slurm:
        from perfwatch.fleet.over_srun import OverSrun

        return OverSrun(slurm, called)
    from perfwatch.fleet.over_kubectl import OverKubectl

    return OverKubectl(kubernetes, called, more)
