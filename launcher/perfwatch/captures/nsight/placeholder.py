"""The program that ``nsys launch`` starts instead of the job: it hands its environment back and lives as long as the job.

``nsys launch`` itself would hold the job: it puts a program of its own (nsys-tee) between the job and its stdout and
stderr, makes it the leader of another session, so that Ctrl-C does not reach it, and answers a SIGTERM with exit code 0
whatever the job's exit code is (tried with 2022.4). So ``perfwatch run`` starts the job as usual, with the variables that
nsys gave this placeholder. They are all that ties a process to nsys' session. If nsys dies, the job continues.

Run by path, standard library only:

- ``python -I placeholder.py keep FOLDER COMMAND...`` runs ``nsys launch`` and removes its folder when it has ended;
- ``python -I placeholder.py stay FOLDER LAUNCHER_PID PLACE`` is what that launches.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ENVIRONMENT = "environment.json"
OVER = "over"
LOOK_SECONDS = 0.5
END_SECONDS = 10.0  # what nsys may take to end its session once the placeholder has ended


def keep(folder: Path, command: list[str]) -> int:
    """Run nsys; its folder must outlive it, or it waits for ever for what it had there. Returns its exit code.

    A session that never began leaves its folder to the process that waits for it: its last words lie there.
    """
    child = subprocess.Popen(command)
    over_since = None
    while child.poll() is None:
        time.sleep(LOOK_SECONDS)
        if (folder / OVER).exists():
            over_since = over_since or time.monotonic()
            if time.monotonic() - over_since > END_SECONDS:
                _shut_down(command)
                child.kill()
    if (folder / ENVIRONMENT).exists():
        shutil.rmtree(folder, ignore_errors=True)
    return child.returncode


def _shut_down(command: list[str]) -> None:
    """End nsys' agent, which is no child of ours; never the job, which that would do by default."""
    session = next(word for word in command if word.startswith("--session-new=")).partition("=")[2]
    try:
        subprocess.run(
            [command[0], "shutdown", f"--session={session}", "--kill=none"], timeout=END_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        pass


def stay(folder: Path, launcher: int, place: Path) -> None:
    """Hand the environment over, then wait for the launcher and, should it be killed, for the job that it started."""
    began = _start_ticks(launcher)
    fresh = folder / f".{ENVIRONMENT}"
    fresh.write_text(json.dumps(dict(os.environ)))
    fresh.rename(folder / ENVIRONMENT)
    while (began is not None and _start_ticks(launcher) == began) or _job_lives(place):
        time.sleep(LOOK_SECONDS)
    (folder / OVER).touch()


def _job_lives(place: Path) -> bool:
    """True if a root of the place (``perfwatch.processes.place``) lives: the launcher wrote it when it started the job."""
    for path in place.glob("root-*"):
        try:
            root = json.loads(path.read_bytes())
            if _start_ticks(int(root["pid"])) == int(root["start_ticks"]):
                return True
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return False


def _start_ticks(pid: int) -> int | None:
    """None too for a process that has ended and is only not collected yet."""
    try:
        fields = Path("/proc", str(pid), "stat").read_bytes().rsplit(b")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return int(fields[19]) if fields[0] != b"Z" else None


if __name__ == "__main__":
    if sys.argv[1] == "keep":
        sys.exit(keep(Path(sys.argv[2]), sys.argv[3:]))
    else:
        stay(Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
