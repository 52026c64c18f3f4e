"""Files as a job leaves them, and what autopsy says of them, in this process."""

from pathlib import Path

from perfwatch.autopsy.recording_of import gather, recording_of
from perfwatch.postmortem import diagnose
from perfwatch.recording.recording import Recording
from perfwatch.verdict import Verdict
from perfwatch_probes.deadline import Inline


def recorded(*paths: Path) -> Recording:
    """What these files and folders say."""
    return recording_of(gather([str(path) for path in paths], Inline()), ("perfwatch", "autopsy"), 1.0)


def judged(*paths: Path) -> Verdict:
    """The verdict on them."""
    return diagnose(recorded(*paths))


def of_log(folder: Path, text: str, name: str = "train.log") -> Verdict:
    """The verdict on one log."""
    (folder / name).write_text(text)
    return judged(folder / name)


def ranks(verdict: Verdict) -> list[int | None]:
    """The ranks at fault."""
    return [one.rank for one in verdict.culprits]
