"""What ``nvidia-smi -q`` and ``dcgmi diag`` say is wrong with a card, as lines that ``perfwatch.failures`` can name."""

import json
import re
from collections.abc import Iterator
from typing import Any

MOST_RESULTS = 4096
LONGEST_SAID = 200
_CARD = re.compile(r"^GPU ([0-9A-Fa-f:.]{8,20})\s*$")
_ROW = re.compile(r"^\|\s*(?P<name>[^|]{0,60}?)\s*\|\s*(?P<said>[^|]*?)\s*\|\s*$")
_FAILED = re.compile(r"(?i)\bfail(?:ed)?\b")
_OF_CARD = re.compile(r"(?i)\bGPUs?:? ?(\d{1,3}(?:, ?\d{1,3})*)")


def parse_smi(text: str) -> Iterator[tuple[int, str, str]]:
    """What ``nvidia-smi -q`` says is wrong: the number of the line, the card, and the error."""
    card = section = counts = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if match := _CARD.match(raw):
            card, section, counts = match[1], "", ""
        elif ":" not in line:
            if line in ("Volatile", "Aggregate"):
                counts = line
            elif line:
                section, counts = line, counts if line.startswith("ECC") else ""
        key, _, value = (part.strip() for part in line.partition(":"))
        if counts == "Volatile" and "Uncorrectable" in key and value.isdigit() and int(value[:18]):
            yield number, card, f"{value[:18]} uncorrectable ECC errors since the driver was loaded ({key})"
        elif section == "Remapped Rows" and key == "Remapping Failure Occurred" and value == "Yes":
            yield number, card, "uncorrectable ECC errors: a row could not be remapped"
        elif "GPU requires reset" in value or value == "GPU is lost":
            yield number, card, value[:80]


def parse_dcgm(text: str) -> Iterator[tuple[int, str, str]]:
    """What ``dcgmi diag`` says has failed, of its table or its JSON: the number of the line (0 for JSON), the cards, the test and why.

    The table has a row for a test and, below it, rows for its warnings; version 4 gives each card a row. The JSON has the tests below
    categories (version 3) or flat (version 4), with results by ``gpu_ids`` or ``entity_id``. Raises ValueError for torn JSON.
    """
    start = text.find("{")
    if start >= 0 and "Diagnostic" in text[start : start + 200]:
        yield from ((0, card, said) for card, said in _dcgm_json(json.loads(text[start : text.rfind("}") + 1])))
        return
    test = ""
    failed: tuple[int, str, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        match = _ROW.match(line)
        if match is None:
            continue
        name, said = match["name"], match["said"]
        if name.lower().startswith(("warning", "error", "info")) or (
            not name and failed is not None and not _FAILED.search(said)
        ):
            if failed is not None:
                failed = (failed[0], failed[1], f"{failed[2]} {said}"[:LONGEST_SAID])
            continue
        if failed is not None:
            yield failed
        test = name or test
        card = _OF_CARD.search(said)
        failed = (number, card[1] if card else "", f"{test}: {said}") if _FAILED.search(said) else None
    if failed is not None:
        yield failed


def _dcgm_json(whole: Any) -> Iterator[tuple[str, str]]:
    root = next((whole[key] for key in ("DCGM GPU Diagnostic", "DCGM Diagnostic") if key in whole), whole)
    groups = root.get("test_categories") or [root]
    tests = [test for group in groups for test in group.get("tests") or () if isinstance(test, dict)]
    for test in tests[:MOST_RESULTS]:
        for result in (test.get("results") or ())[:MOST_RESULTS]:
            if not isinstance(result, dict) or not _FAILED.search(str(result.get("status"))):
                continue
            card = result.get("gpu_ids", result.get("entity_id", ""))
            warnings = result.get("warnings") or result.get("info") or ""
            first = warnings[0] if isinstance(warnings, list) and warnings else warnings
            why = first.get("warning", "") if isinstance(first, dict) else first
            yield str(card)[:40], f"{test.get('name')}: Fail {why}"[:LONGEST_SAID]
