"""The watcher that ``perfwatch top PID`` starts if the job has none: ``attach PID --watch``, until the screen closes."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from itertools import dropwhile
from pathlib import Path
from types import TracebackType

from perfwatch.errors import EXIT_CODES, PerfwatchError
from perfwatch.processes.linux import die_with_parent
from perfwatch.processes.reinvoke import own_command
from perfwatch.recording.session import choose_directory
from perfwatch_probes.deadline import KillableChild

READY_SECONDS = 20.0
LEAVE_SECONDS = 3.0
EVERY_SECONDS = 0.05
_OURS = "perfwatch: "  # before what perfwatch says of an error


class StartedWatch:
    """Within ``with``: a watcher of ours, with its recording in ``folder``.

    Args:
        pid: any process of the job.

    Raises:
        PerfwatchError: it could not be started, in the watcher's own words.
    """

    def __init__(self, pid: int) -> None:
        child = KillableChild()
        try:
            created = time.time()
            self.folder: Path = choose_directory(None, os.environ, child, created=created, pid=os.getpid())
        finally:
            child.close()
        self._pid = pid
        self._errors = tempfile.TemporaryFile()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "StartedWatch":
        ours = os.getpid()
        self._process = subprocess.Popen(
            [*own_command(), "attach", str(self._pid), "--watch", "--session", str(self.folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            process_group=0 if sys.version_info >= (3, 11) else None,  # Ctrl-C is meant for the screen
            preexec_fn=lambda: die_with_parent(ours),
        )
        ends = time.monotonic() + READY_SECONDS
        while not (self.folder / "session.json").exists():
            code = self._process.poll()
            if code is not None or time.monotonic() > ends:
                self._stop()
                raise self._refusal(code)
            time.sleep(EVERY_SECONDS)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        """Let it write its last verdict, but not for long."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _refusal(self, code: int | None) -> PerfwatchError:
        self._errors.seek(0)
        said = self._errors.read(65536).decode("utf-8", "replace").splitlines()
        lines = list(dropwhile(lambda line: not line.startswith(_OURS), said))
        if not lines and code is None:
            lines = ["the watch did not begin in time"]
        elif not lines:  # it did not come to words of ours: its exit code is none of ours either
            lines = [f"the watch ended at once (exit code {code})" + "".join(f": {line}" for line in said[-1:])]
            code = None
        if not any(self.folder.iterdir()):
            self.folder.rmdir()
        error = PerfwatchError(lines[0].removeprefix(_OURS), "\n".join(line.strip() for line in lines[1:]))
        error.exit_code = code if code and code not in EXIT_CODES.values() else PerfwatchError.exit_code
        return error
