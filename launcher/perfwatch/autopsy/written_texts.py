"""Texts beside the logs of a job that people have written: programs, configurations, tables, pages. They tell nothing of how it ended.

Each is known by its grammar, and the benefit of the doubt is a log's: what is called another text is never read.
"""

import ast
import json
import re
import warnings

SOURCE, SCRIPT, CONFIGURATION, TABLE, PAGE = (
    "Python source file",
    "program text",
    "configuration file",
    "table",
    "document",
)

_FEW_LINES = 3  # of a configuration or a table: one or two lines of any log may look like them
_TOP_LEVEL = re.compile(r"^(?:def|class|@|import|from|if|async)\b.*$", re.MULTILINE)
_PROGRAM = re.compile(
    r"\s*(?:#!|#include\b|#pragma\b|/\*|//|<\?xml|<!DOCTYPE|<html|FROM \S+(?: AS \w+)?$)", re.MULTILINE
)
_RAN = re.compile(r"^[^#\n]*(?:\d\d:\d\d:\d\d|\b(?:ERROR|WARNING|INFO)\b|Traceback \(most recent)", re.MULTILINE)
_HEADING = re.compile(r"^#{1,4} \S.*\n\s*$", re.MULTILINE)
_SECTION = re.compile(r"\[[\w.\-\" ]+\]")
_ITEM = re.compile(
    r"(?P<indent>\s*)(?:- )*(?P<key>[\w.\-/\"']+)\s*(?::(?:\s+(?P<value>.*))?|=\s*(?P<set>.*)|[=~><]=\s*[\w.*]+)"
)
_FIELD = re.compile(r"[A-Za-z_][\w./%-]*")


def kind_of_written(text: str, whole: bool) -> str:
    """Which of the words above a text is; empty for a log, or for what may be one.

    Args:
        text: its beginning.
        whole: True if that is all of it.
    """
    if not whole:
        text = text[: text.rfind("\n") + 1]
    if _PROGRAM.match(text) and not _RAN.search(text):
        return SCRIPT
    if _is_python(text, whole):
        return SOURCE
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if len(lines) < _FEW_LINES:
        return ""
    if _is_configuration(lines) or (whole and _is_document(text)):
        return CONFIGURATION
    if _is_table(lines):
        return TABLE
    headings = len(_HEADING.findall(text))
    return PAGE if headings > 1 and lines[0].startswith("#") and not _RAN.search(text) else ""


def _is_python(text: str, whole: bool) -> bool:
    """True if it compiles and defines, imports or describes something: many a line of a log compiles."""
    if not whole:
        text = text[: max((found.start() for found in _TOP_LEVEL.finditer(text)), default=0)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    defines = ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef
    return any(isinstance(one, defines) for one in body) or (bool(body) and text.startswith('"""'))


def _is_configuration(lines: list[str]) -> bool:
    """True if each line sets a key, in sections, and none is set twice: a log repeats itself, and says ``who: what: why``."""
    known: dict[str, set[str]] = {}
    keys = 0
    for line in lines:
        if line.lstrip().startswith(("#", ";")) or line == "---":
            continue
        if _SECTION.fullmatch(line.strip()):
            known.clear()
            continue
        if re.fullmatch(r"\s*- [^:]*", line):
            continue
        found = _ITEM.fullmatch(line)
        if found is None or ": " in (found["value"] or "").strip("\"'{}[]"):
            return False
        indent = found["indent"]
        for inner in [one for one in known if len(one) > len(indent)]:
            del known[inner]
        if "- " in line[: line.index(found["key"])]:
            known.clear()
        if found["key"] in known.setdefault(indent, set()):
            return False
        known[indent].add(found["key"])
        keys += 1
    return keys > 1


def _is_document(text: str) -> bool:
    """True if it is one JSON value on several lines: a log has one on each."""
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


def _is_table(lines: list[str]) -> bool:
    """True if a line of names is followed by as many values on each line."""
    for mark in (",", "\t"):
        names = lines[0].split(mark)
        if len(names) > 1 and all(map(_FIELD.fullmatch, names)):
            return all(line.count(mark) == len(names) - 1 for line in lines)
    return False
