"""``perfwatch daemon``: watch every training job of this machine, from its appearance on."""

import sys
from pathlib import Path
from typing import Annotated

from perfwatch.exporters.options import AskedOutlets
from perfwatch.exporters.wanted import Wanted
from perfwatch.hang_timeout import HANG_TIMEOUT_SECONDS
from perfwatch.options import Number, OneOf, Option, Seconds
from perfwatch.watching.options import HangTimeout


def daemon(
    directory: Annotated[
        Path | None, Option(metavar="DIR", help="Where recordings go; a local disk by default.")
    ] = None,
    disk_budget: Annotated[
        float, Option(metavar="GIB", help="What all recordings may take together.", min=0.1, max=2.0**20)
    ] = 4.0,
    user: Annotated[
        str | None, Option(metavar="NAME|UID", help="Only jobs of this user; of all users by default.")
    ] = None,
    slurm_job: Annotated[
        int | None,
        Option(
            metavar="JOBID",
            kind=Number(1, whole=True, likely="4711"),
            help="Only processes of this Slurm job: by the control group that slurmd made. A process outside those groups "
            "counts by its SLURM_JOB_ID, if --user names its user.",
        ),
    ] = None,
    readable_by: Annotated[
        str | None,
        Option(metavar="NAME|UID", help="This user may read the recordings too, from the start (ACL, read only)."),
    ] = None,
    patience: HangTimeout = HANG_TIMEOUT_SECONDS,
    every: Annotated[float, Option(metavar="TIME", kind=Seconds(0.1), help="How often new jobs are looked for.")] = 5.0,
    log_format: Annotated[
        str,
        Option(
            metavar="text|json",
            kind=OneOf(("text", "json")),
            help="json: one object per line, with time, event, pid, uid, session, state, cause and message.",
        ),
    ] = "text",
    asked: AskedOutlets = Wanted,
) -> None:
    """Watch every training job of this machine, as it appears.

    Each job gets a watcher and a recording. A job that your own perfwatch run watches is left to it. When all recordings
    together exceed the budget the oldest calm ones are removed first. Notebooks are left alone. Root sees the jobs of
    all users, others see their own. SIGTERM completes the recordings and ends it; the jobs are never touched.

    \b
    Examples:
      perfwatch daemon
      sudo perfwatch daemon --metrics-port 9123 --notify @/etc/perfwatch/webhook
      sudo perfwatch daemon --metrics-port 0.0.0.0:9123 --metrics-token @token
      curl -H "Authorization: Bearer $(cat token)" http://NODE:9123/metrics
      sudo perfwatch daemon --on-verdict /etc/perfwatch/actions/cancel-slurm-job
      sudo perfwatch daemon --slurm-job 4711 --user ann --readable-by ann
      perfwatch daemon --log-format json 2>&1 | jq 'select(.state == "hung")'
      systemctl start perfwatch          with scripts/deploy/perfwatch.service
    """
    from perfwatch.daemon.serving import Wishes, serve
    from perfwatch.exporters.options import uid_of

    reader = uid_of(readable_by, "--readable-by")
    wishes = Wishes(directory, disk_budget, patience, every, uid_of(user), slurm_job, reader, log_format == "json")
    serve(wishes, asked(), sys.stderr)
