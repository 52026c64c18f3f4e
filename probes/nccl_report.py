"""What NCCL's RAS service answers to ``verbose status``: JSON (NCCL 2.28.7 and newer), or text for people (2.24 and newer).

Source of the formats: src/ras/client_support.cc of NCCL 2.24 to 2.30. The JSON names every rank and count; the text names
only ranks that differ, so of a communicator without trouble it says no more than its size. A healthy job "mismatches"
too: its ranks are a few launches apart. Whether counts grow is for the reader of two answers to say.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from perfwatch.probes.probe import Unavailable
from perfwatch.probes.readings import Communicator, GroupMember

IN_PROGRESS = 7  # ncclInProgress: this rank still initialises the communicator
MOST_MEMBERS = 16384
MOST_COMMUNICATORS = 1024
# NCCL 2.28.9 forgets a comma after each missing rank's nvml_dev: recorded on H200 with one of two ranks killed.
_FORGOTTEN_COMMA = re.compile(r'("nvml_dev": -?\d+)(\s+"status")')
_VERSION = re.compile(r"^NCCL version (\S+)", re.MULTILINE)
_HEADING = re.compile(r"^#\d+-\d+ \(([0-9a-fx]+)\) (INCOMPLETE|ERROR|MISMATCH)$")
_GROUP = re.compile(r"^ *\d+ +(\d+) +\d+ +(?:\d+(?:-\d+)?) +(\d+) +(\d+) +([A-Z/]+) +(\S+)$")
_COUNTS = re.compile(r"^ {2}Communicator ranks have different (\w+) operation counts$")
_LAUNCHED = re.compile(r"^ {2}(\d+) ranks have (?:launched up to operation (\d+)|not launched any operations)$")
_RANK = re.compile(
    r"^ +Rank (\d+)(?: has launched up to operation (\d+)| has (not) launched any operations| has status (\w+)"
    r"| reported (.+?))?(?: -- GPU (\d+)\S*(?: \(\S+ \S+\))? managed by process (\d+) on node (\S+)"
    r"| -- \[process information not found\])?$"
)
_MISSING_LIST = re.compile(r"^ {2}The missing ranks?: (.+)$")
_TIMEOUTS = re.compile(r"encountered (\d+) communication timeout")
_STATES = {"INIT": "starting", "RUNNING": "running", "FINALIZE": "finalizing", "ABORT": "aborted", "NOCOMM": "missing"}


def parse(answer: str) -> list[Communicator]:
    """Every communicator in an answer of either form. Raises Unavailable for anything else."""
    text = answer.lstrip()
    if text.startswith("{"):
        return list(parse_json(text))
    if text.startswith("NCCL version"):
        return list(parse_text(text))
    first = text.splitlines()[0][:80] if text else "nothing"
    raise Unavailable(f"what listens there is not NCCL's RAS service: it answered {first!r}")


def parse_json(text: str) -> Iterator[Communicator]:
    """Raises Unavailable where the text is torn or something else."""
    try:
        whole = json.loads(_FORGOTTEN_COMMA.sub(r"\1,\2", text))
        communicators = whole["communicators"]
        version, timeouts = str(whole.get("nccl_version", "")), _number(whole.get("ras", {}).get("timeouts_count"))
        for one in communicators[:MOST_COMMUNICATORS]:
            members = [_member(rank) for rank in one["ranks"][:MOST_MEMBERS]]
            absent = [_absent(rank) for rank in one.get("missing_ranks", ())[:MOST_MEMBERS]]
            yield Communicator(
                communicator=str(one["hash"])[:40].removeprefix("0x"),
                size=int(one["size"]),
                members=tuple(sorted((*members, *absent), key=lambda member: member.rank)),
                missing=_number(one.get("missing_ranks_count")),
                timeouts=timeouts,
                nccl_version=version[:40],
            )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unavailable(f"an answer of RAS cannot be read: {type(error).__name__}: {error}") from None


def _member(rank: dict[str, Any]) -> GroupMember:
    status = rank.get("status", {})
    state = "running"
    if status.get("abort_flag"):
        state = "aborted"
    elif status.get("finalize_called") or status.get("destroy_flag"):
        state = "finalizing"
    elif _number(status.get("init_state")) == IN_PROGRESS:
        state = "starting"
    return GroupMember(
        rank=int(rank["rank"]),
        pid=int(rank["pid"]),
        host=str(rank.get("host", ""))[:255],
        gpu=_number(rank.get("cuda_dev")),
        state=state,
        error=_number(status.get("async_error")),
        launched={str(name)[:40]: int(count) for name, count in list(rank.get("collective_counts", {}).items())[:16]},
    )


def _absent(rank: dict[str, Any]) -> GroupMember:
    status = rank.get("status", {})
    state = "dead" if status.get("considered_dead") else "unresponsive" if status.get("unresponsive") else "missing"
    pid = _number(rank.get("pid"))
    return GroupMember(
        rank=int(rank["rank"]),
        pid=pid if pid > 0 else None,
        host=str(rank.get("host", ""))[:255],
        gpu=_number(rank.get("cuda_dev")),
        state=state,
    )


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def parse_text(text: str) -> Iterator[Communicator]:
    """The report for people. Communicators that it does not call odd have no name there: they are numbered."""
    found = _VERSION.search(text)
    if found is None:
        raise Unavailable("an answer of RAS does not say its version")
    told: dict[str, _Told] = {}
    groups: list[tuple[int, int, str]] = []  # communicators in the group, ranks in each, status
    current: _Told | None = None
    section = ""
    for line in text.splitlines():
        if match := _GROUP.match(line):
            groups.append((int(match[1]), int(match[2]), match[4]))
        elif match := _HEADING.match(line):
            current = told.setdefault(match[1].removeprefix("0x"), _Told())
            section = match[2]
        elif line in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            current = None
        elif current is not None:
            current.read(line, section)
    timeouts = sum(int(count) for count in _TIMEOUTS.findall(text))
    size = groups[0][1] if groups else 0
    for name, one in told.items():
        yield Communicator(
            communicator=name,
            size=max(size, len(one.members)) if len(groups) <= 1 else len(one.members),
            members=tuple(one.members[rank] for rank in sorted(one.members)),
            missing=sum(member.state == "missing" for member in one.members.values()),
            timeouts=timeouts,
            nccl_version=found[1],
            source="text",
        )
    for number, (count, ranks, status) in enumerate(groups[:MOST_COMMUNICATORS]):
        if count == 1 and len(groups) == 1 and told:
            continue  # it is the one above
        yield Communicator(
            communicator=f"group-{number}",
            size=ranks,
            members=(),
            timeouts=timeouts,
            nccl_version=found[1],
            source="text" if status == "RUNNING" else f"text: {status}",
        )


class _Told:
    """What the text says of one communicator, line by line."""

    def __init__(self) -> None:
        self.members: dict[int, GroupMember] = {}
        self._collective = ""
        self._common: int | None = None  # the count of ranks that are listed below without one

    def read(self, line: str, section: str) -> None:
        if match := _COUNTS.match(line):
            self._collective, self._common = match[1], None
        elif match := _LAUNCHED.match(line):
            self._common = int(match[2] or 0)
        elif match := _MISSING_LIST.match(line):
            for rank in re.findall(r"\d+", match[1])[:MOST_MEMBERS]:
                self._put(int(rank), state="missing")
        elif match := _RANK.match(line):
            rank, pid = int(match[1]), int(match[7]) if match[7] else None
            facts: dict[str, Any] = {"pid": pid, "host": match[8] or "", "gpu": int(match[6]) if match[6] else None}
            launched = int(match[2]) if match[2] else 0 if match[3] else self._common
            if section == "MISMATCH" and self._collective and launched is not None and not match[4]:
                facts["launched"] = {**self._launched(rank), self._collective: launched}
            if match[4]:
                facts["state"] = _STATES.get(match[4], "unknown")
            elif section == "INCOMPLETE":
                facts["state"] = "missing"
            elif section == "ERROR":
                facts["error"] = 1
            self._put(rank, **facts)

    def _launched(self, rank: int) -> dict[str, int]:
        known = self.members.get(rank)
        return known.launched if known is not None else {}

    def _put(self, rank: int, **facts: Any) -> None:
        known = self.members.get(rank)
        if known is not None:
            facts = {
                "pid": facts.get("pid") or known.pid,
                "host": facts.get("host") or known.host,
                "gpu": facts.get("gpu") if facts.get("gpu") is not None else known.gpu,
                "state": facts.get("state", known.state),
                "error": facts.get("error", known.error),
                "launched": facts.get("launched", known.launched),
            }
        self.members[rank] = GroupMember(rank=rank, **facts)
