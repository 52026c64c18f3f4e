"""What a syscall file and a process's memory say, written for tests, and decoded."""

from collections.abc import Callable

from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Wait
from perfwatch_probes.syscalls import decode

POINTER = 0x7FFF42330DB0
MONOTONIC, REALTIME = 1, 0


def line(number: int, *arguments: int) -> str:
    """The text of a syscall file."""
    words = [*arguments, *[0] * (6 - len(arguments))]
    return f"{number} {' '.join(f'{word:#x}' for word in words)} 0x7fff42330d98 0x7f26d1556503\n"


def clock(number: int) -> float:
    """Both clocks stand still."""
    return {MONOTONIC: 1000.0, REALTIME: 5000.0}[number]


def memory(content: dict[int, bytes]) -> Callable[[int, int], bytes]:
    """A memory with something at some addresses."""

    def read(address: int, size: int) -> bytes:
        if address not in content:
            raise Unavailable("unmapped")
        return content[address][:size]

    return read


def x86(text: str, content: dict[int, bytes] | None = None, **known: object) -> Wait:
    """Decode on x86_64; it must be a wait."""
    wait = decode(text, memory(content or {}), machine="x86_64", now=clock, **known)  # type: ignore[arg-type]
    assert wait is not None
    return wait
