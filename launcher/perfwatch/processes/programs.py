"""Run one external program without shell or terminal, with bounded output; it is killed at its deadline and when we exit."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from perfwatch.errors import CaptureUnavailable
from perfwatch.processes import linux
from perfwatch_probes.external import Finished, reap
from perfwatch_probes.sessions import keep_nice_value

LONGEST_OUTPUT_BYTES = 32 * 2**20
GRACE_SECONDS = 0.5


def run_program(
    command: Sequence[str], deadline_seconds: float, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run it and return how it ended; ``returncode`` is None when it was killed at the deadline.

    A late one is killed with all that it started in its session: ncu and nsys are shell scripts around what works.
    Raises CaptureUnavailable when it cannot be started.
    """
    began = time.monotonic()
    parent = os.getpid()

    def settle() -> None:
        linux.die_with_parent(parent)
        keep_nice_value()

    # Into files, not pipes: a child of its own that keeps a pipe open must not hold us.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                preexec_fn=settle,
                env=dict(environment) if environment is not None else None,
                cwd="/",
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise CaptureUnavailable(f"{command[0]} could not be started: {error}") from error
        cpu_seconds = reap(child, deadline_seconds, whole_group=False)  # nsys leaves its session at work
        late = cpu_seconds is None
        if late:
            _kill(child.pid)
            if reap(child, GRACE_SECONDS) is None:
                child.returncode = -signal.SIGKILL  # unkillable: left behind
        texts = []
        for stream in (output, errors):
            stream.seek(0)
            texts.append(stream.read(LONGEST_OUTPUT_BYTES))
    return Finished(
        returncode=None if late else child.returncode,
        output=texts[0],
        errors=texts[1].decode(errors="replace"),
        duration_seconds=time.monotonic() - began,
        cpu_seconds=cpu_seconds or 0.0,
    )


def _kill(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
