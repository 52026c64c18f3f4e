"""The rows of a gauntlet on disk: one JSON line each, appended at once, so that an interruption loses nothing."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from perfwatch.gauntlet.attempt import Attempt, blank_row
from perfwatch.gauntlet.conditions import Conditions
from perfwatch.gauntlet.score import Row

AnyRow = TypeVar("AnyRow", bound=msgspec.Struct)
FILE = "rows.jsonl"


def append(folder: Path, row: msgspec.Struct) -> None:
    """Add one row to the file in ``folder``."""
    with (folder / FILE).open("ab") as file:
        file.write(msgspec.json.encode(row) + b"\n")


def load(folder: Path) -> list[Row]:
    """Read every row in ``folder``; none where there is no file yet; a torn last line is left out."""
    return load_as(folder, Row)


def load_as(folder: Path, kind: type[AnyRow]) -> list[AnyRow]:
    """The same, of rows of another kind."""
    try:
        lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=kind) for line in lines if line.endswith(b"\n")]


def left_to_do(attempts: Iterable[Attempt], conditions: Conditions, done: Iterable[Row]) -> list[Attempt]:
    """Leave out the attempts that have a row already; a broken drill is tried again."""
    keys = {row.key for row in done if row.broken is None}
    return [attempt for attempt in attempts if blank_row(attempt, conditions).key not in keys]
