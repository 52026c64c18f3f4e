"""A verdict as one JSON object on one line: schema ``perfwatch.verdict/2``, every field present, unknown ones null.

``json_schema`` describes it. A confidence is a word (``confidence``: certain, high, medium, low, none). A frame has
its function, file, line and source text. Names are those of the screen: ``culprits``, ``ruled_out``, ``not_observed``, ``other_findings``.
``perfwatch.verdict/1`` has the names and numbers of perfwatch 0.1.
"""

import json
import re
from typing import Any

import msgspec

from perfwatch.text import json_text
from perfwatch.verdict import ACTIONS, NO_CONFIDENCE, STATES, Level, Verdict, confidence_word

NEWEST = 2
SCHEMA = f"perfwatch.verdict/{NEWEST}"
# What a field is called in /2, of what it is called in triage and in /1.
NAMES = {
    "witness": "source",
    "claim": "observation",
    "alternatives": "ruled_out",
    "missing": "not_observed",
    "findings": "other_findings",
    "owner": "usually_fixed_by",
}
PLACES = "place"  # since /2
SINCE_2 = (PLACES, "action", "job")
_FRAME = re.compile(r"(?P<function>.*) \((?P<file>.*):(?P<line>\d+)\)", re.DOTALL)


def as_json(verdict: Verdict, version: int = NEWEST) -> str:
    """The object that ``attach --json`` and ``replay --json`` print, without a line end."""
    return json_text(as_object(verdict, version))


def as_object(verdict: Verdict, version: int = NEWEST) -> dict[str, Any]:
    """The same as a dictionary, to be a part of a larger document."""
    facts = msgspec.to_builtins(verdict)
    return {**(_first(facts) if version == 1 else _second(facts)), "schema": f"perfwatch.verdict/{version}"}


def json_schema() -> str:
    """The JSON Schema of ``perfwatch.verdict/2``. The package has it as ``report/schema/perfwatch.verdict-2.json``."""
    described = _described(msgspec.json.schema(Verdict))
    kinds = described["$defs"]
    place = kinds.pop("Place")
    for name in ("file", "line"):
        place["properties"][name] = {"anyOf": [place["properties"][name], {"type": "null"}]}
    place["description"] = (
        "A line of a program. file: the full path if a stack has it, else its last part. source: the text of the line."
    )
    kinds["Frame"] = place
    kinds["Verdict"]["properties"]["schema"] = {"const": SCHEMA}
    kinds["Verdict"]["properties"]["state"] = {"enum": list(STATES)}
    kinds["Verdict"]["properties"]["action"] = {"enum": [*ACTIONS, None]}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA}
    return json.dumps({**head, **described}, indent=1) + "\n"


def _described(part: Any) -> Any:
    """A part of the schema of ``Verdict`` with the names of /2; every field is present."""
    if isinstance(part, list):
        return [_described(one) for one in part]
    if not isinstance(part, dict):
        return part
    found = {name: _described(value) for name, value in part.items() if name != "default"}
    if isinstance(part.get("properties"), dict) and part.get("type") == "object":
        fields = {
            NAMES.get(name, name): _described(value) for name, value in part["properties"].items() if name != PLACES
        }
        if "frame" in fields:
            fields["frame"] = {"anyOf": [{"$ref": "#/$defs/Frame"}, {"type": "null"}]}
        if "confidence" in fields:
            fields["confidence"] = {"enum": [*(level.word for level in Level), NO_CONFIDENCE]}
        found |= {
            "properties": fields,
            "required": list(fields),
            "description": part.get("description", "").partition("\n")[0],
        }
    return found


def _first(facts: Any) -> Any:
    if isinstance(facts, dict):
        return {name: _first(value) for name, value in facts.items() if name not in SINCE_2}
    return [_first(one) for one in facts] if isinstance(facts, list | tuple) else facts


def _second(facts: Any) -> Any:
    if isinstance(facts, list | tuple):
        return [_second(one) for one in facts]
    if not isinstance(facts, dict):
        return facts
    converted = {NAMES.get(name, name): _second(value) for name, value in facts.items() if name != PLACES}
    if "frame" in facts:
        converted["frame"] = facts[PLACES] or _told(facts["frame"])
    if "confidence" in facts:
        converted["confidence"] = confidence_word(facts["confidence"])
    return converted


def _told(frame: str | None) -> dict[str, Any] | None:
    """A frame of which no stack is at hand, from its short form: only the last part of the file's name is known."""
    found = _FRAME.fullmatch(frame or "")
    if frame is None:
        return None
    if found is None:
        return {"function": frame, "file": None, "line": None, "source": None}
    return {"function": found["function"], "file": found["file"], "line": int(found["line"]), "source": None}
