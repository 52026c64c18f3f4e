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
