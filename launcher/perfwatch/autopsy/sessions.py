"""A recorded session among the files: the hang that was seen before the job ended, or else how it ended.

The recording is judged in the child that reads it: what it says comes back as one event.
"""

from pathlib import Path

from perfwatch.errors import PerfwatchError
from perfwatch.postmortem import diagnose
from perfwatch.recording.recent import lines_bytes, load_recent
from perfwatch.recording.recording import Event, Recording, load, load_session
from perfwatch.recording.session import AUTOPSY
from perfwatch.report.moment import last_told, told_first
from perfwatch.triage.history import key_of
from perfwatch.verdict import Verdict
from perfwatch_probes import readings as r
from perfwatch_probes.probe import Unavailable

KIND = "session"  # of the event
OF_SEVERAL_HOSTS = "fleet"  # the mode of such a recording
EXPLAINS_THE_END = "hung"  # the state of a living job after which its end is no news
LARGE_BYTES, REMEMBER_SECONDS = 32 * 2**20, 600.0  # as replay does
JOB_IDS = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "FLUX_JOB_ID")


class Judged:
    """A verdict, as ``told_first`` wants it."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict


def read_session(folder: Path, name: str) -> Event:
    """What a session says. Raises Unavailable where it cannot be read or judged here.

    Its facts: began and ended (unix time), host, command, job (an id that its scheduler or launcher gave), how the job ended
    (end, end_sub_cause, end_retry; empty where the recording ends before the job), last_step, attempt (of torchrun).
    """
    try:
        mode = load_session(folder).mode
        if mode == OF_SEVERAL_HOSTS:
            raise Unavailable("it is a recording of several hosts", f"perfwatch replay {folder}")
        large = mode != AUTOPSY and lines_bytes(folder) > LARGE_BYTES
        recording = load_recent(folder, key_of, REMEMBER_SECONDS, last_told, _silent) if large else load(folder)
    except PerfwatchError as error:
        raise Unavailable(error.message, error.advice) from None
    shown, lived = told_first(recording, lambda at: Judged(diagnose(recording.until(at), at)))
    end = diagnose(recording)
    verdict = shown.verdict if end.state != "gone" or shown.verdict.state == EXPLAINS_THE_END else end
    text = f"{name}: {verdict.state} {verdict.cause or ''}".rstrip()
    return Event(0.0, KIND, text, verdict, _facts(recording, name, verdict, lived, end))


def _silent(done: int, of: int) -> None:
    """No person waits at a screen."""


def _facts(recording: Recording, name: str, verdict: Verdict, lived: Verdict | None, end: Verdict) -> dict[str, object]:
    session = recording.session
    processes = [one.reading for one in recording.records if isinstance(one.reading, r.Process)]
    variables = {key: value for one in processes for key, value in one.environment.items()}
    gone = end.state == "gone"
    steps = [one.last_step for one in (verdict, lived, end) if one is not None and one.last_step is not None]
    return {
        "name": name,
        "mode": session.mode,
        "began": session.created,
        "ended": session.created + recording.end,
        "host": session.machine.name,
        "command": " ".join(session.command),
        "job": next((f"{key}={variables[key]}" for key in JOB_IDS if variables.get(key)), ""),
        "end": end.cause or "" if gone else "",
        "end_sub_cause": end.sub_cause or "" if gone else "",
        "end_retry": end.retry or "" if gone else "",
        "end_summary": end.summary if gone else "",
        "last_step": max(steps, default=None),
    }
