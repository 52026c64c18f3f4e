"""One program of NVIDIA's with a deadline: outside of a capture's window, where ``Window.run`` does it.

It dies with us and at the deadline together with whatever it started; nothing of it touches the terminal. These tools
need more of the environment than py-spy does (HOME, TMPDIR, library paths), so they get all of it unless one is given.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from perfwatch.probes.external import OUTPUT_LIMIT_BYTES, Finished

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
MISSING = 127


def run(command: Sequence[str], deadline_seconds: float, environment: Mapping[str, str] | None = None) -> Finished:
    """Run it to its end or to the deadline; ``returncode`` is None when it was late, 127 when it could not start.

    Output goes through unnamed files and is cut at ``OUTPUT_LIMIT_BYTES``: what is longer belongs into a file of its own.
    """
    parent = os.getpid()

    def die_with_parent() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    began = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                preexec_fn=die_with_parent,
                env=None if environment is None else dict(environment),
            )
        except OSError as error:
            return Finished(MISSING, b"", f"{command[0]}: {error.strerror}", 0.0)
        try:
            returncode: int | None = child.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            returncode = None
        except BaseException:
            _end(child)
            raise
        if returncode is None:
            _end(child)
        output.seek(0)
        errors.seek(0)
        return Finished(
            returncode=returncode,
            output=output.read(OUTPUT_LIMIT_BYTES),
            errors=errors.read(OUTPUT_LIMIT_BYTES).decode(errors="replace"),
            duration_seconds=time.monotonic() - began,
        )


def _end(child: "subprocess.Popen[bytes]") -> None:
    """With all of its own: ncu is a shell script around the program that works."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1.0)
