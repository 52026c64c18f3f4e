"""Dumps of torch's flight recorder, for tests: recorded ones, and one that would do harm."""

import os
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "nccl"


def dump(rank: int) -> bytes:
    """What rank 0 or 1 wrote on an H200, torch 2.11, while rank 1 slept; the newest 70 entries."""
    return (RECORDED / f"fr_torch2.11_hung_rank{rank}.pickle").read_bytes()


class Bomb:
    """A pickle that would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/perfwatch-was-here",)
