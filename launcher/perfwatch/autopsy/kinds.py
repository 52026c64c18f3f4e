"""What a file is, by its first bytes; its name says nothing."""

import re

HEAD_BYTES = 65536
MOST_NULS = 0.1  # of a text: a log on a file system that crashed has runs of them

DUMP, DUMP_JSON, RAS, STACKS_JSON, STACKS_TEXT, TRACE = (
    "flight-recorder dump",
    "flight-recorder dump (JSON)",
    "RAS answer",
    "py-spy dump (JSON)",
    "py-spy dump",
    "Kineto trace",
)
LOG, GZIP, SMI = "log", "gzip", "nvidia-smi -q"
# What is known and not read: what it is, and what to do instead.
REFUSED = {
    "execution trace": "an execution trace tells which operators ran, not when: give the Kineto trace of the same run",
    "PyTorch checkpoint or zip archive": "unpack it first, if it holds logs",
    "tar archive": "unpack it first",
    "core dump or program": "gdb PROGRAM CORE -batch -ex 'thread apply all bt' makes a text of it",
    "SQLite database": "perfwatch does not read it here",
    "empty": "nothing is in it",
    "binary file": "perfwatch reads texts, dumps, stacks and traces",
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


def kind_of(head: bytes) -> str:
    """Of a file that begins so: one of the words above."""
    if not head.strip(b"\0 \t\r\n"):
        return "empty"
    if head[:2] == b"\x1f\x8b":
        return GZIP
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return DUMP
    if head[:4] == b"PK\x03\x04":
        return "PyTorch checkpoint or zip archive"
    if head[:15] == b"SQLite format 3":
        return "SQLite database"
    if head[:4] == b"\x7fELF":
        return "core dump or program"
    if head[257:262] == b"ustar":
        return "tar archive"
    start = head.lstrip()[:1]
    if start in (b"{", b"["):
        return _of_json(head)
    if _SMI.search(head[:400]):
        return SMI
    if _RAS_TEXT.match(head):
        return RAS
    if _STACKS_TEXT.match(head):
        return STACKS_TEXT
    return LOG if head.count(0) <= MOST_NULS * len(head) or _is_text(head) else "binary file"


def _of_json(head: bytes) -> str:
    if _TRACE.search(head):
        return TRACE
    if _EXECUTION.search(head):
        return "execution trace"
    if _RAS.search(head):
        return RAS
    if _DUMP.search(head):
        return DUMP_JSON
    return STACKS_JSON if _STACKS.match(head) else LOG


def _is_text(head: bytes) -> bool:
    """True if what is not NUL is text."""
    rest = head.replace(b"\0", b"")
    odd = sum(byte < 9 or 13 < byte < 27 for byte in rest)
    return len(rest) > 16 and odd <= 0.02 * len(rest)
