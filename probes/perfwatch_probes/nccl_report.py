"""What NCCL's RAS service answers to ``verbose status``: JSON (NCCL 2.28.7 and newer), or text for people (2.24 and newer).

Source of the formats: src/ras/client_support.cc of NCCL 2.24 to 2.30. The JSON names every rank and count; the text names
only ranks that differ, so of a communicator without trouble it says no more than its size. A healthy job "mismatches"
too: its ranks are a few launches apart. Whether counts grow is for the reader of two answers to say.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from perfwatch_probes.foreign import number, text
from perfwatch_probes.nccl_text import MOST_COMMUNICATORS, MOST_MEMBERS, parse_text
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Communicator, GroupMember

IN_PROGRESS = 7  # ncclInProgress: this rank still initialises the communicator
# NCCL 2.28.9 forgets a comma after each missing rank's nvml_dev: recorded on H200 with one of two ranks killed.
_FORGOTTEN_COMMA = re.compile(r'("nvml_dev": -?\d+)(\s+"status")')


def parse(answer: str) -> list[Communicator]:
    """Every communicator in an answer of either form. Raises Unavailable for anything else."""
    said = answer.lstrip()
    if said.startswith("{"):
        return list(parse_json(said))
    if said.startswith("NCCL version"):
        try:
            return list(parse_text(said))
        except ValueError as error:  # a number of thousands of digits
            raise Unavailable(f"an answer of RAS cannot be read: {error}") from None
    first = said.splitlines()[0][:80] if said else "nothing"
    raise Unavailable(f"what listens there is not NCCL's RAS service: it answered {first!r}")


def parse_json(answer: str) -> Iterator[Communicator]:
    """Raises Unavailable where the text is torn or something else."""
    try:
        whole = json.loads(_FORGOTTEN_COMMA.sub(r"\1,\2", answer))
        communicators = whole["communicators"]
        version, timeouts = text(whole.get("nccl_version"), 40), _count(whole.get("ras", {}).get("timeouts_count"))
        for one in communicators[:MOST_COMMUNICATORS]:
            members = [_member(rank) for rank in one["ranks"][:MOST_MEMBERS]]
            absent = [_absent(rank) for rank in one.get("missing_ranks", ())[:MOST_MEMBERS]]
            yield Communicator(
                communicator=text(one["hash"], 40).removeprefix("0x"),
                size=_whole(one["size"]),
                members=tuple(sorted((*members, *absent), key=lambda member: member.rank)),
                missing=_count(one.get("missing_ranks_count")),
                timeouts=timeouts,
                nccl_version=version,
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
    elif _count(status.get("init_state")) == IN_PROGRESS:
        state = "starting"
    return GroupMember(
        rank=_whole(rank["rank"]),
        pid=_whole(rank["pid"]),
        host=text(rank.get("host"), 255),
        gpu=_count(rank.get("cuda_dev")),
        state=state,
        error=_count(status.get("async_error")),
        launched={
            text(name, 40): _whole(count) for name, count in list(rank.get("collective_counts", {}).items())[:16]
        },
    )


def _absent(rank: dict[str, Any]) -> GroupMember:
    status = rank.get("status", {})
    state = "dead" if status.get("considered_dead") else "unresponsive" if status.get("unresponsive") else "missing"
    pid = _count(rank.get("pid"))
    return GroupMember(
        rank=_whole(rank["rank"]),
        pid=pid if pid > 0 else None,
        host=text(rank.get("host"), 255),
        gpu=_count(rank.get("cuda_dev")),
        state=state,
    )


def _count(value: Any) -> int:
    return number(value) or 0


def _whole(value: Any) -> int:
    """One that must be told. Raises ValueError for anything else."""
    told = number(value)
    if told is None:
        raise ValueError(f"{type(value).__name__} in place of a number")
    return told
