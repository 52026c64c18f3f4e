"""What a file is, by its first bytes; its name says nothing.

Texts that people have written (programs, configurations, tables, pages) tell nothing of how a job ended. Each is known by its
grammar, and the benefit of the doubt is a log's: what is called another text is never read.
"""

import ast
import json
import re
import warnings

from perfwatch.failures import named

HEAD_BYTES = 65536
MOST_ODD, FEW_ODD = 0.02, 3  # control characters in a text: a share, and that many in a short one
_ODD = bytes([*range(1, 8), *range(14, 27)])

DUMP, DUMP_JSON, RAS, STACKS_JSON, STACKS_TEXT, TRACE = (
    "flight-recorder dump",
    "flight-recorder dump (JSON)",
    "RAS answer",
    "py-spy dump (JSON)",
    "py-spy dump",
    "Kineto trace",
)
LOG, GZIP, ZIP, SMI = "log", "gzip", "zip archive", "nvidia-smi -q"
CHECKPOINT, SESSION = "checkpoint", "recorded session"
PYSTACK, GDB, DCGM, SQLITE = "pystack text", "gdb backtrace", "dcgmi diag", "SQLite database"
# Texts that people have written.
SOURCE, SCRIPT, CONFIGURATION, TABLE, PAGE = (
    "Python source file",
    "program text",
    "configuration file",
    "table",
    "document",
)
# What is known and not read: what it is, and what to do instead.
REFUSED = {
    "execution trace": "an execution trace tells which operators ran, not when: give the Kineto trace of the same run",
    "tar archive": "unpack it first",
    "core dump or program": "gdb PROGRAM CORE -batch -ex 'thread apply all bt' makes a text of it",
    "empty": "nothing is in it",
    "binary file": "perfwatch reads texts, dumps, stacks and traces",
    **dict.fromkeys((SOURCE, SCRIPT, CONFIGURATION, TABLE, PAGE), "it is no log: give what the job has printed"),
}

_TRACE = re.compile(rb'"traceEvents"\s*:|"deviceProperties"\s*:|"baseTimeNanoseconds"\s*:|"displayTimeUnit"\s*:')
_EXECUTION = re.compile(
    rb'"schema"\s*:\s*"[\d.]+-chakra|"nodes"\s*:\s*\[|"pytorch_version"|\[pytorch\|profiler\|execution'
)
_DUMP = re.compile(rb'"(?:pg_config|pg_status|comm_lib_version|collective_seq_id|profiling_name)"\s*:')
_STACKS = re.compile(rb'^\s*\[\s*\{[^\[\]]{0,400}?"(?:thread_id|os_thread_id|thread_name)"')
_RAS = re.compile(rb'"communicators"\s*:|"communicators_count"\s*:')
_SMI = re.compile(rb"=+NVSMI LOG=+")
_RAS_TEXT = re.compile(rb"^\s*NCCL version [\d.]+ compiled with CUDA")
_STACKS_TEXT = re.compile(rb"^\s*Process \d+: .*\n(?:Python v[\d.]+|\s*$)", re.MULTILINE)
_PYSTACK = re.compile(rb"^\s*Traceback for thread \d+ .{0,80}\(most recent call last\):\s*$", re.MULTILINE)
_GDB = re.compile(rb"^Thread \d+ \((?:Thread 0x[0-9a-f]+ \()?LWP \d+\)?.{0,80}:\s*$", re.MULTILINE)
_DCGM = re.compile(rb'"DCGM (?:GPU )?Diagnostic"|^\| Diagnostic\s+\| Result|^Successfully ran diagnostic', re.MULTILINE)
# torch.save writes NAME/data.pkl first; torch.distributed.checkpoint's .metadata and older files are pickles of its classes.
_SAVED = re.compile(rb"[^\0]{0,255}/(?:data\.pkl|version|byteorder|\.format_version|\.data/)")
_TENSORS = re.compile(rb"torch\.distributed\.checkpoint|torch\._utils|torch\.storage|\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19\.")
_SAFETENSORS = re.compile(rb"[\s\S]{4}\0{4}\{\"[^\0]{1,300}?\"(?:dtype|format|data_offsets)\"")
_SESSION = re.compile(rb'\{"schema":\s*"perfwatch\.session/')
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


def kind_of(head: bytes) -> str:
    """Of a file that begins so: one of the words above."""
    if not head.strip(b"\0 \t\r\n"):
        return "empty"
    if head[:2] == b"\x1f\x8b":
        return GZIP
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return CHECKPOINT if _TENSORS.search(head) else DUMP
    if head[:4] == b"PK\x03\x04":
        return CHECKPOINT if _SAVED.match(head[30:430]) else ZIP
    if _SAFETENSORS.match(head):
        return CHECKPOINT
    if head[:15] == b"SQLite format 3":
        return SQLITE
    if head[:4] == b"\x7fELF":
        return "core dump or program"
    if head[257:262] == b"ustar":
        return "tar archive"
    if head.lstrip()[:1] in (b"{", b"[") and (kind := _of_json(head)):
        return kind
    if _SMI.search(head[:400]):
        return SMI
    if _RAS_TEXT.match(head):
        return RAS
    if _STACKS_TEXT.match(head):
        return STACKS_TEXT
    if _PYSTACK.search(head):
        return PYSTACK
    if _GDB.search(head):
        return GDB
    if _DCGM.search(head[:4000]):
        return DCGM
    if not _is_text(head):
        return "binary file"
    return _kind_of_written(head.decode("utf-8", "replace"), len(head) < HEAD_BYTES) or LOG


def _of_json(head: bytes) -> str:
    """Empty for a text of another kind: many logs begin with a bracket."""
    if _SESSION.match(head):
        return SESSION
    if _TRACE.search(head):
        return TRACE
    if _EXECUTION.search(head):
        return "execution trace"
    if _DCGM.search(head[:4000]):
        return DCGM
    if _RAS.search(head):
        return RAS
    if _DUMP.search(head):
        return DUMP_JSON
    return STACKS_JSON if _STACKS.match(head) else ""


def _is_text(head: bytes) -> bool:
    """True if what is not NUL is text: a log on a file system that crashed has runs of NULs. A progress bar steps back (8)."""
    rest = head.replace(b"\0", b"")
    odd = len(rest) - len(rest.translate(None, _ODD))
    return odd <= max(FEW_ODD, MOST_ODD * len(rest)) and (len(rest) > 16 or len(rest) == len(head))


def _kind_of_written(text: str, whole: bool) -> str:
    """The kind of a text that a person wrote; empty for a log, or for what may be one.

    Args:
        text: its beginning.
        whole: True if that is all of it.
    """
    if not whole:
        text = text[: text.rfind("\n") + 1]
    if _is_python(text, whole):
        return SOURCE
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if _RAN.search(text):
        return ""  # it tells when something was, as the state of a pod does
    headings = len(_HEADING.findall(text))
    if headings > 1 and lines[0].startswith("#"):
        return PAGE
    if any(map(named, lines)):
        return ""  # it tells of an end, as what sacct prints does
    if _PROGRAM.match(text):
        return SCRIPT
    if len(lines) < _FEW_LINES:
        return ""
    if _is_configuration(lines) or (whole and _is_document(text)):
        return CONFIGURATION
    return TABLE if _is_table(lines) else ""


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
