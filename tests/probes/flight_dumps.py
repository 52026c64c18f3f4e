"""Dumps of torch's flight recorder, for tests: recorded ones, and one that would do harm."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "nccl"


def dump(rank: int) -> bytes:
    """What rank 0 or 1 wrote on an H200, torch 2.11, while rank 1 slept; the newest 70 entries."""
    return (RECORDED / f"fr_torch2.11_hung_rank{rank}.pickle").read_bytes()


def coalesced(rank: int) -> bytes:
    """The newest 17 calls of rank 0 or 1 on two H100, torch 2.11: sends in a batch and alone, and collectives of several pieces."""
    return (RECORDED / f"fr_torch2.11_coalesced_rank{rank}.pickle").read_bytes()


class Bomb:
    """A pickle that would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/perfwatch-was-here",)


def call(
    order: int, name: str, collective: int, send: int = 0, over: bool = True, size: int = 8, p2p: bool = False
) -> dict[str, Any]:
    """One entry, as torch writes it: every one bears the numbers of the newest collective and of the newest send."""
    return {"record_id": order, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": collective,
            "p2p_seq_id": send, "profiling_name": f"nccl:{name}", "input_sizes": [[size]], "output_sizes": [[size]],
            "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "completed" if over else "scheduled",
            "retired": over, "is_p2p": p2p, "frames": []}  # fmt: skip


def written(entries: list[dict[str, Any]], enqueued: int, completed: int, ranks: str = "[0, 1]") -> bytes:
    """A dump of one group, with what its status says."""
    status = {"last_enqueued_collective": str(enqueued), "last_completed_collective": str(completed)}
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return json.dumps({"version": "2.10", "entries": entries, "pg_config": config, "pg_status": {"0": status}}).encode()


def waiting(groups: dict[str, tuple[str, list[int], int, int]], begun: int = 0, **more: Any) -> bytes:
    """A pickle of the calls that are not over, as a watchdog's dump has it where ``TORCH_INCLUDE_ONLY_ACTIVE`` is set.

    Args:
        groups: by name: description, ranks, newest call, newest call that is over. A group of one rank writes no entry.
        begun: the local number of the first group; later ones are two apart, as where groups of another backend lie between them.
        more: further fields of the dump.
    """
    entries: list[dict[str, Any]] = []
    config, status = {}, {}
    for place, (name, (description, ranks, enqueued, completed)) in enumerate(groups.items()):
        number = begun + 2 * place
        config[name] = {"name": name, "desc": description, "ranks": str(ranks)}
        status[str(number)] = {"last_enqueued_collective": enqueued, "last_started_collective": -1,
                               "last_completed_collective": completed}  # fmt: skip
        for sequence in range(completed + 1, enqueued + 1):
            entry = call(len(entries), "all_reduce", sequence, over=False)
            entries.append({**entry, "pg_id": number, "process_group": (name, description)})
    whole = {"version": "2.9", "pg_config": dict(sorted(config.items())), "pg_status": status, "entries": entries}
    return pickle.dumps({**whole, **more}, protocol=2)
