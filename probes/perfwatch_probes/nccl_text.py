"""The report of NCCL's RAS service for people, which is all that NCCL before 2.28.7 has.

It names only what is odd: of a communicator without trouble its size, of one whose ranks have called unequally often those
ranks that are fewer than half; the others follow from its size. NCCL 2.24 and 2.25 count all collectives together, from
2.26 on there is a part for each kind.

Source: src/ras/client_support.cc (rasClientRunComms) of NCCL 2.24 to 2.30; recorded answers of six of these versions.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Communicator, GroupMember

MOST_MEMBERS = 16384
MOST_COMMUNICATORS = 1024
LOST = ("missing", "unresponsive", "dead")
_VERSION = re.compile(r"^NCCL version (\S+)", re.MULTILINE)
_TIMEOUTS = re.compile(r"^ +Encountered (\d+) communication timeout", re.MULTILINE)
_LAST_HEADING = "\nWarnings\n========\n"
_GROUP = re.compile(r"^ *(\d+) +(\d+) +\d+ +\d+(?:-\d+)? +(\d+) +\d+ +([A-Z]+) +\S+$")
_HEADING = re.compile(r"^#(\d+)-\d+ \(([0-9a-f]+)\) (INCOMPLETE|ERROR|MISMATCH)$")
_PROCESS = re.compile(r"^ {2}Process (\d+) on node (\S+) managing GPUs? (\d+)\S*")
_WITHOUT_DATA = re.compile(r"^ {2}Missing communicator data from (\d+) ranks?$")
_LISTED = re.compile(r"^ {2}The (?:missing|unknown) ranks?: ([\d,]+)$")  # 2.24 and 2.25
_COUNTS = re.compile(r"^ {2}Communicator ranks have different (\w+) operation counts$")
_SEVERAL = re.compile(
    r"^ {2}(\d+) ranks (?:have (?:launched up to operation (\d+)|(not) launched any operations|status (\w+))|reported (.+))$"
)
_RANK = re.compile(
    r"^ {2}Rank (\d+)"
    r"(?: has launched up to operation (\d+)| has (not) launched any operations| has status (\w+)| reported (.+?))?"
    r"(?: -- GPU (\d+)\S*(?: \(\S+ \S+\))? managed by process (\d+) on node (\S+)"
    r"| -- \[process information not found\])?$"
)
_STATES = {
    "INIT": "starting", "RUNNING": "running", "FINALIZE": "finalizing", "ABORT": "aborted",
    "NOCOMM": "missing", "UNKNOWN": "missing",  # its process answers, and does not know the communicator (any more)
}  # fmt: skip
_ERRORS = (  # by ncclResult_t
    "", "Unhandled CUDA error", "System error", "Internal error", "Invalid argument", "Invalid usage", "Remote process error",
    "NCCL operation in progress", "Unexpected error",
)  # fmt: skip


@dataclass(frozen=True)
class _Process:
    """One that RAS does not reach."""

    pid: int
    host: str
    gpu: int
    state: str


def parse_text(text: str) -> Iterator[Communicator]:
    """Every communicator. Those that it does not call odd have no name there: a group of them is numbered.

    Raises Unavailable where the text is torn.
    """
    version = _VERSION.search(text)
    if version is None or _LAST_HEADING not in text or not text.endswith("\n"):
        raise Unavailable("an answer of RAS cannot be read: it ends too early")
    groups: list[tuple[int, int, str]] = []  # communicators in it, ranks in each, status
    told: dict[str, _Told] = {}
    unreached: list[_Process] = []
    current: _Told | None = None
    block = ""
    for line in text.splitlines():
        if match := _GROUP.match(line):
            groups.append((int(match[2]), int(match[3]), match[4]))
        elif match := _HEADING.match(line):
            current, block = told.setdefault(match[2], _Told(int(match[1]))), match[3]
        elif line in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            current, block = None, line
        elif current is not None:
            current.read(line, block)
        elif match := _PROCESS.match(line):
            state = "dead" if block == "DEAD" else "unresponsive"
            unreached.append(_Process(int(match[1]), match[2], int(match[3]), state))
    common: dict[str, Any] = {
        "timeouts": sum(int(count) for count in _TIMEOUTS.findall(text)),
        "nccl_version": version[1][:40],
    }
    # NCCL 2.24 and 2.25 do not say whose a missing rank is: clear only where there is one of each.
    only = unreached[0] if len(unreached) == 1 and [count for count, _, _ in groups] == [1] else None
    for name, one in list(told.items())[:MOST_COMMUNICATORS]:
        size = groups[one.group][1] if one.group < len(groups) else 0
        yield Communicator(
            communicator=name, size=size, members=one.finished(size, unreached, only), missing=one.lost, source="text", **common
        )  # fmt: skip
    for number, (count, size, status) in enumerate(groups[:MOST_COMMUNICATORS]):
        if count > sum(one.group == number for one in told.values()):
            source = "text" if status == "RUNNING" else f"text: {status}"
            yield Communicator(communicator=f"group-{number}", size=size, source=source, **common)


@dataclass
class _Part:
    """How often the ranks have called one kind of collective: so many ranks, their count, those of them that are named."""

    collective: str
    counts: list[tuple[int, int, list[int]]] = field(default_factory=list)

    def complete(self, answered: Iterable[int]) -> dict[int, int]:
        """By rank; empty where it cannot be told of every rank that answered, for then it is not known which is behind."""
        found = {rank: count for _, count, named in self.counts for rank in named}
        unnamed = [(ranks - len(named), count) for ranks, count, named in self.counts if ranks != len(named)]
        others = set(answered) - set(found)
        if len(unnamed) == 1 and unnamed[0][0] == len(others):
            found |= dict.fromkeys(others, unnamed[0][1])
        return found if found.keys() == set(answered) else {}


class _Told:
    """What the text says of one communicator, line by line.

    Args:
        group: its row in the table.
    """

    def __init__(self, group: int) -> None:
        self.group = group
        self._members: dict[int, GroupMember] = {}
        self._parts: list[_Part] = []
        self._announced = 0  # how many ranks the list to come has
        self._state, self._error = "running", 0  # of the ranks that are listed below without one
        self._unlisted = 0

    @property
    def lost(self) -> int:
        """How many ranks were not heard of."""
        return self._unlisted + sum(member.state in LOST for member in self._members.values())

    def read(self, line: str, block: str) -> None:
        """The next line of a block about it."""
        if match := _COUNTS.match(line):
            self._parts.append(_Part(match[1]))
        elif match := _WITHOUT_DATA.match(line):
            self._announced, self._state = int(match[1]), "missing"
        elif match := _SEVERAL.match(line):
            self._several(int(match[1]), match)
        elif match := _LISTED.match(line):
            ranks = [int(rank) for rank in match[1].split(",") if rank]
            # A list that is too long for the service's line is cut, perhaps within a number.
            whole = len(ranks) == self._announced or self._announced == 0
            self._unlisted += 0 if whole else self._announced
            for rank in ranks[:MOST_MEMBERS] if whole else ():
                self._put(rank, state="missing")
        elif match := _RANK.match(line):
            self._rank(int(match[1]), match, block)

    def _several(self, ranks: int, match: re.Match[str]) -> None:
        if match[4]:
            self._announced, self._state = ranks, _STATES.get(match[4], "unknown")
        elif match[5]:
            self._error = _error(match[5])
        elif self._parts:
            self._parts[-1].counts.append((ranks, int(match[2] or 0), []))

    def _rank(self, rank: int, match: re.Match[str], block: str) -> None:
        facts: dict[str, Any] = {}
        if match[7]:
            facts = {"pid": int(match[7]), "host": match[8][:255], "gpu": int(match[6])}
        if block == "ERROR":
            facts["error"] = _error(match[5]) if match[5] else self._error
        elif match[4]:
            facts["state"] = _STATES.get(match[4], "unknown")
        elif match[2] or match[3]:
            if self._parts:
                self._parts[-1].counts.append((1, int(match[2] or 0), [rank]))
        elif block == "MISMATCH" and self._parts:
            if self._parts[-1].counts:
                self._parts[-1].counts[-1][2].append(rank)
        else:
            facts["state"] = self._state
        self._put(rank, **facts)

    def _put(self, rank: int, **facts: Any) -> None:
        known = self._members.get(rank)
        before = {} if known is None else {name: getattr(known, name) for name in known.__struct_fields__}
        self._members[rank] = GroupMember(**{**before, "rank": rank, **facts})

    def finished(self, size: int, unreached: Iterable[_Process], only: _Process | None) -> tuple[GroupMember, ...]:
        """Its members in rank order: all that can be told of."""
        states = {(one.host, one.pid): one.state for one in unreached}
        lost = [member for member in self._members.values() if member.state in LOST]
        for member in lost:
            if only is not None and member.pid is None and len(lost) == 1:
                self._put(member.rank, pid=only.pid, host=only.host, gpu=only.gpu, state=only.state)
            elif (member.host, member.pid or 0) in states:
                self._put(member.rank, state=states[member.host, member.pid or 0])
        if size <= MOST_MEMBERS and not self._unlisted:
            answered = set(range(size)) - {member.rank for member in lost}
            launched = {part.collective: part.complete(answered) for part in self._parts[:16]}
            for rank in sorted(set().union(*launched.values())):
                self._put(rank, launched={name: counts[rank] for name, counts in launched.items() if counts})
        return tuple(self._members[rank] for rank in sorted(self._members)[:MOST_MEMBERS])


def _error(said: str) -> int:
    return _ERRORS.index(said) if said in _ERRORS else len(_ERRORS) - 1
