"""An Nsight Systems session for a job that is about to start: what ``run --arm nsys`` prepares.

``nsys launch`` runs our placeholder (``perfwatch.captures.nsight.placeholder`` says why). The job gets the variables that nsys
gave the placeholder, and every later ``nsys start`` and ``nsys stop`` of that session records the job. osrt is never traced: with
it one window of 2 s wrote 2.1 GB and the job ran 30 % slower until its end.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from perfwatch.captures.nsight import placeholder
from perfwatch.captures.nsight.finding import Run, Tool, find, options
from perfwatch.errors import CaptureUnavailable
from perfwatch.processes.armed import read_armed, write_armed
from perfwatch_probes.agent_folder import AgentFolder

KIND = "nsys"
TRACES = "cuda,nvtx"
_ARMING = "arming-nsys"  # in the place: the launcher that makes this file opens the session
LAUNCH_SECONDS = 15.0  # until the placeholder runs: 0.3 s here; the job waits for it
INJECTIONS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")  # one library each: another tool's stays
# Of the placeholder alone: where it ran, and what nsys did with its output. Not LD_PRELOAD either: with it every program
# that the job starts would load nsys, and, if nsys' agent is dead, end with exit code 1 before its first line (tried
# with 2022.4). CUDA loads nsys by itself, in the processes that use it, from the variables that are left.
_NOT_THE_JOBS = frozenset({"PWD", "OLDPWD", "_", "SHLVL", "TMPDIR", "NSYS_TARGET_STD_REDIRECT_ACTION", "LD_PRELOAD"})


def arm(
    environment: Mapping[str, str], place: Path, run: Run, python: str = sys.executable, launcher: int | None = None
) -> dict[str, str]:
    """Open a session and return the environment with which the job belongs to it.

    Args:
        environment: with which the job would start.
        place: the job's place; what a capture needs to know is left there.
        run: runs nsys to ask what it can do.
        python: runs the placeholder.
        launcher: the process with which the session ends, unless the job lives on; this one by default.

    Raises CaptureUnavailable: no nsys, too old, another tool injects already, or it does not start in time.
    """
    taken = [name for name in INJECTIONS if environment.get(name)]
    if taken:
        raise CaptureUnavailable(
            f"{taken[0]} is set: another tool is to be injected into the job",
            f"start without it: unset {' '.join(taken)}",
        )
    if not _first(place):
        return {**environment, **_for_the_job(_of_another(place), environment)}
    try:
        return _opened(environment, place, run, (python, launcher or os.getpid()))
    except BaseException:
        (place / _ARMING).unlink(missing_ok=True)
        raise


def _first(place: Path) -> bool:
    """True if no other launcher of this job (``srun``: one for each rank) opens a session: there is one for all."""
    try:
        os.close(os.open(place / _ARMING, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def _of_another(place: Path) -> dict[str, str]:
    """What nsys gave the placeholder of the launcher that came first, once it has."""
    ends = time.monotonic() + LAUNCH_SECONDS
    while (place / _ARMING).exists() and time.monotonic() < ends:
        facts = read_armed(AgentFolder(place)).get(KIND)
        if facts is not None:
            given: dict[str, str] = json.loads((Path(facts["tmpdir"]) / placeholder.ENVIRONMENT).read_text())
            return given
        time.sleep(0.01)
    raise CaptureUnavailable("another launcher of this job could not open a session of nsys", "its stderr says why")


def _opened(
    environment: Mapping[str, str], place: Path, run: Run, by: tuple[str, int], again: bool = False
) -> dict[str, str]:
    tool = find(KIND, environment, run)
    _check_age(tool, options(tool, run, "launch"))
    folder = Path(tempfile.mkdtemp(prefix="perfwatch-nsys-"))  # private; nsys writes there while it records
    session = folder.name.replace("_", "-")  # no other has it, nor one of before that is still ending
    started = _launch(tool, session, folder, place, environment, by)
    try:
        given = _environment(folder, started)
    except CaptureUnavailable:
        # Its agent may have come up after all.
        run((tool.path, "shutdown", f"--session={session}"), LAUNCH_SECONDS, None)
        if again:
            raise
        return _opened(environment, place, run, by, again=True)  # seen once: "Local Endpoint is not available"
    write_armed(
        place,
        KIND,
        {"nsys": tool.path, "version": tool.version_text, "session": session, "tmpdir": str(folder)},
    )
    return {**environment, **_for_the_job(given, environment)}


def launch_command(tool: Tool, session: str, program: tuple[str, ...]) -> tuple[str, ...]:
    """Make a session that traces nothing until it is told to; pure."""
    return (tool.path, "launch", f"--session-new={session}", f"--trace={TRACES}", *program)


def _check_age(tool: Tool, listed: frozenset[str]) -> None:
    missing = {"--session-new", "--trace"} - listed
    if missing:
        raise CaptureUnavailable(
            f"nsys {tool.version_text} ({tool.path}) is too old: its launch has no {' and no '.join(sorted(missing))}",
            "install a newer one, or name it: PERFWATCH_NSYS=PATH",
        )


def _launch(
    tool: Tool, session: str, folder: Path, place: Path, environment: Mapping[str, str], by: tuple[str, int]
) -> "subprocess.Popen[bytes]":
    python, launcher = by
    stay = (python, "-I", placeholder.__file__, "stay", str(folder), str(launcher), str(place))
    keep = (python, "-I", placeholder.__file__, "keep", str(folder))
    with (folder / "launch.log").open("wb") as log:
        try:
            return subprocess.Popen(
                (*keep, *launch_command(tool, session, stay)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_unblock,
                env={**environment, "TMPDIR": str(folder)},
            )
        except OSError as error:
            raise CaptureUnavailable(
                f"{tool.path}: {error.strerror}", "PERFWATCH_NSYS=PATH names another nsys"
            ) from None


def _unblock() -> None:
    """In the child: the launcher has blocked every signal, and nsys waits for some."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _environment(folder: Path, started: "subprocess.Popen[bytes]") -> dict[str, str]:
    """What nsys gave the placeholder, once it runs."""
    path = folder / placeholder.ENVIRONMENT
    ends = time.monotonic() + LAUNCH_SECONDS
    while not path.exists():
        if started.poll() is not None or time.monotonic() > ends:
            how = (
                "did not start a program in time" if started.returncode is None else f"ended with {started.returncode}"
            )
            with contextlib.suppress(OSError):
                os.killpg(started.pid, signal.SIGKILL)
            said = _last_words(folder)
            shutil.rmtree(folder, ignore_errors=True)
            raise CaptureUnavailable(f"nsys launch {how}: {said}", "try it: nsys launch --trace=cuda,nvtx true")
        time.sleep(0.01)
    given: dict[str, str] = json.loads(path.read_text())
    return given


def _last_words(folder: Path) -> str:
    try:
        said = (folder / "launch.log").read_text(errors="replace").strip().splitlines()
    except OSError:
        said = []
    return said[-1][:200] if said else "it said nothing"


def _for_the_job(given: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """The variables that nsys added or changed."""
    changed = {name: value for name, value in given.items() if before.get(name) != value and name not in _NOT_THE_JOBS}
    if "LD_LIBRARY_PATH" in changed:  # nsys leaves an empty entry, which would mean the working directory
        changed["LD_LIBRARY_PATH"] = ":".join(filter(None, changed["LD_LIBRARY_PATH"].split(":")))
    return changed
