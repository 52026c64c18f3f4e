"""What captures brought, from their events in the recording: the summary, the files, and the kernels where a trace has some.

An event's facts are the outcome of the capture as plain data; a part that is missing or of another shape is left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfwatch.recording.recording import Event
from perfwatch.report.story import Story

NANOSECONDS = 1e9
MOST_KERNELS, MOST_LINES, MOST_FILES = 30, 24, 16


@dataclass(frozen=True)
class Kernel:
    """One kernel in one pass; ``share``: of the time of all that are listed. The last three only where counters were read."""

    name: str
    family: str
    part: str
    count: int
    seconds: float
    share: float
    dram_gb_per_second: float | None = None
    tensor_percent: float | None = None
    efficiency: float | None = None


@dataclass(frozen=True)
class Captured:
    """One capture. ``lines``: what it found and what it cost, in words; ``whose``: the rank that the kernels are of."""

    at: float
    text: str
    lines: tuple[str, ...]
    files: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    whose: str

    @property
    def counted(self) -> bool:
        """True if the card's counters were read."""
        return any(kernel.efficiency is not None for kernel in self.kernels)


def captured(story: Story) -> list[Captured]:
    """Every capture of the recording, in order of time."""
    return [_one(event) for event in story.recording.events if event.kind == "capture"]


def _one(event: Event) -> Captured:
    facts = event.facts
    lines = [*_words(facts.get("summary")), *(f"note: {note}" for note in _strings(facts.get("notes")))]
    lines += [*_words(facts.get("cost")), *_words(facts.get("advice"))]
    report = facts.get("report")
    ranks = report.get("ranks") if isinstance(report, Mapping) else None
    first = next((one for one in _mappings(ranks) if _mappings(one.get("kernels"))), {})
    table = report.get("kernels") if isinstance(report, Mapping) else None
    counted = [_timed(one) for one in _mappings(table.get("rows"))] if isinstance(table, Mapping) else []
    return Captured(
        at=event.at,
        text=event.text,
        lines=tuple(lines[:MOST_LINES]),
        files=tuple(str(one.get("path", "")) for one in _mappings(facts.get("files")))[:MOST_FILES],
        kernels=tuple(_kernels(counted or _mappings(first.get("kernels")))),
        whose=f"rank {first['rank']}" if isinstance(first.get("rank"), int) else "",
    )


def _kernels(found: Sequence[Mapping[str, Any]]) -> Iterator[Kernel]:
    told = [one for one in found if isinstance(one.get("seconds"), int | float) and isinstance(one.get("name"), str)]
    total = sum(one["seconds"] for one in told) or 1.0
    for one in sorted(told, key=lambda kernel: -float(kernel["seconds"]))[:MOST_KERNELS]:
        count = one.get("count")
        yield Kernel(
            name=one["name"],
            family=str(one.get("family", "")),
            part=str(one.get("part", "")),
            count=count if isinstance(count, int) else 0,
            seconds=float(one["seconds"]),
            share=one["seconds"] / total,
            dram_gb_per_second=_number(one.get("dram_gb_per_second")),
            tensor_percent=_number(one.get("tensor_percent")),
            efficiency=_number(one.get("efficiency")),
        )


def _timed(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of ncu's kernel table under the names that a trace's kernels have."""
    nanoseconds = _number(row.get("time_ns"))
    seconds = None if nanoseconds is None else nanoseconds / NANOSECONDS
    return {**row, "name": row.get("short_name"), "part": row.get("training_pass", ""), "seconds": seconds}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []


def _strings(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list | tuple) else []


def _words(value: object) -> list[str]:
    return value.splitlines() if isinstance(value, str) else []
