"""Readings of files that a job left behind. ``perfwatch_probes.readings`` says what all readings share."""

from perfwatch_probes.job_readings import Frame
from perfwatch_probes.reading import Reading


class FailureLine(Reading, frozen=True, kw_only=True):
    """A line of a log that tells of an end: an error, a signal, a kill, a limit. What kind of end it is, triage decides.

    line: its number in the file, from 1. logged_at: unix time by the newest time stamp at or above it. frame: the innermost line of
    the program in the traceback above it. exit_code, signal: where the line tells them, as a launcher's summary does.
    got_over: True if the same rank logged progress afterwards.
    """

    file: str
    line: int
    text: str
    rank: int | None = None
    pid: int | None = None
    host: str = ""
    logged_at: float | None = None
    frame: Frame | None = None
    exit_code: int | None = None
    signal: int | None = None
    got_over: bool = False
    attempt: int | None = None  # of a job that was started again: torchrun numbers its folders


class LogSpan(Reading, frozen=True, kw_only=True):
    """From when to when a log was written, and how far the training came in it.

    began, ended: unix time of its first and last time stamp. Steps are as the program counts them: in its first and last lines
    (first_step, last_step), in what it said about the checkpoint that it loaded (resumed_step) and the last one that it saved (saved_step).
    """

    file: str
    began: float | None = None
    ended: float | None = None
    first_step: int | None = None
    last_step: int | None = None
    resumed_step: int | None = None
    saved_step: int | None = None
    attempt: int | None = None


class SavedCheckpoint(Reading, frozen=True, kw_only=True):
    """A file of a checkpoint. written: unix time; step: where its path tells it. What is in it is not read."""

    file: str
    written: float
    size_bytes: int
    step: int | None = None
