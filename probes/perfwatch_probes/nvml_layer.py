"""The seam to NVML, the driver's management library: one question in, plain data out, or ``Refused``.

Everything that perfwatch knows of a GPU comes through this protocol, so that a test (or a recorded series) can stand in
for the driver: any number of cards, lost ones, slow ones, cards that do not tell. ``perfwatch_probes.nvml_driver`` is the real one.
Names of calls, fields and metrics are NVML's own: https://docs.nvidia.com/deploy/nvml-api/
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# nvmlReturn_t, as far as it decides anything here.
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED, TIMEOUT = 3, 4, 6, 9, 10
INVALID_ARGUMENT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, LOST, RESET_REQUIRED, VERSION_MISMATCH, IN_USE = (
    2, 12, 13, 15, 16, 18, 19,
)  # fmt: skip
# This card or driver will not tell later either.
NEVER = frozenset({NOT_SUPPORTED, INVALID_ARGUMENT, FUNCTION_NOT_FOUND})
UNREACHABLE = frozenset({LOST, RESET_REQUIRED})  # the card itself is the trouble
UNKNOWN = (
    999  # to one question this or that; to everything: the card is lost ("Unable to determine the device handle ...")
)

ALL_LINKS = 0xFFFFFFFF  # scope of a field that is a sum over all NVLinks


class Refused(Exception):
    """NVML answered, but not with what was asked.

    Args:
        code: nvmlReturn_t.
        text: the driver's words for it.
    """

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text or f"NVML error {code}")
        self.code = code
        self.text = text or f"NVML error {code}"


@dataclass(frozen=True)
class Listed:
    """A process that NVML lists on a card. ``memory_bytes``: None where the driver does not tell (MIG, some drivers)."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True)
class Happened:
    """An event of the driver. ``data`` is the Xid when ``kind`` is 0x8."""

    kind: int
    data: int


Handle = Any  # opaque: whatever the layer gave for a card
ToLocal = Callable[
    [int, int | None], int | None
]  # a pid that NVML lists, and the minor of its card: the pid as we see it, or None


class Nvml(Protocol):
    """NVML as perfwatch uses it. Any call may raise Refused, take long, or never come back."""

    def start(self) -> None:
        """Load the library and connect to the driver (nvmlInit_v2). No CUDA context is made, here or later."""
        ...

    def card(self, index: int) -> Handle:
        """The card with this index, in the order of the PCI bus."""
        ...

    def mig_device(self, card: Handle, index: int) -> Handle:
        """A MIG device of a card."""
        ...

    def number(self, call: str, *arguments: Any) -> int:
        """The answer of a call that gives one number."""
        ...

    def numbers(self, call: str, *arguments: Any) -> tuple[int, ...]:
        """The answer of a call that gives several numbers."""
        ...

    def text(self, call: str, *arguments: Any) -> str:
        """The answer of a call that gives a text."""
        ...

    def record(self, call: str, *arguments: Any) -> Mapping[str, Any]:
        """The answer of a call that gives a structure, by the names of its members."""
        ...

    def fields(self, handle: Handle, wanted: Sequence[tuple[int, int]]) -> list[int | float | Refused]:
        """Many values in one call (nvmlDeviceGetFieldValues): for each (field, scope) a value or why there is none."""
        ...

    def processes(self, handle: Handle, kind: str) -> list[Listed]:
        """Processes with a context on a card; ``kind``: compute, graphics, mps. PIDs are those of the host."""
        ...

    def process_utilisation(self, handle: Handle, since_microseconds: int) -> list[tuple[int, int, int]]:
        """(pid, time in microseconds, percent of SM time) of the samples since then."""
        ...

    def gpm_sample(self, handle: Handle, into: Any, instance: int | None) -> Any:
        """Read the card's GPM counters, into a buffer that was given before, or a new one.

        Args:
            handle: the card (of a MIG device: its parent).
            into: what an earlier call returned; None makes a new buffer.
            instance: GPU instance of a MIG device, or None for the whole card.
        """
        ...

    def gpm_metrics(self, first: Any, second: Any, wanted: Sequence[int]) -> list[float | None]:
        """What happened between two GPM samples, for each metric id; None for those that the card does not have."""
        ...

    def watch_events(self, card: Handle, before: Any) -> Any:
        """Ask for the Xid events of a card; returns what ``next_event`` takes.

        Each card has a set of its own, for one that is lost makes its whole set refuse, and can no longer say who it is.

        Args:
            card: whose events.
            before: what an earlier call returned for the same card, which is given back; None for the first one.
        """
        ...

    def next_event(self, events: Any) -> Happened | None:
        """The next event that is there, without waiting."""
        ...
