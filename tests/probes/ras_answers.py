"""Recorded answers of NCCL's RAS service, by version and what the job did."""

from functools import cache
from pathlib import Path

from tests.ttar import files

ANSWERS = Path(__file__).parent / "nccl" / "ras_answers.ttar"


def ras_answer(name: str) -> str:
    """One of them, such as ``2.28.9_hung.json``."""
    return _answers()[f"ras_{name}"]


@cache
def _answers() -> dict[str, str]:
    return {path: text for path, text, _ in files(ANSWERS.read_text())}
