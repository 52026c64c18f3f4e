"""A stand-in for NVML: cards that are made of what they answer. Tests change one answer and see what becomes of it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfwatch_probes.nvml_layer import (
    INVALID_ARGUMENT,
    LOST,
    NOT_FOUND,
    NOT_SUPPORTED,
    UNKNOWN,
    Happened,
    Listed,
    Refused,
)

HOPPER: dict[tuple[Any, ...], Any] = {
    ("nvmlDeviceGetName",): "NVIDIA H200",
    ("nvmlDeviceGetArchitecture",): 9,
    ("nvmlDeviceGetCudaComputeCapability",): (9, 0),
    ("nvmlDeviceGetNumGpuCores",): 16896,
    ("nvmlDeviceGetMemoryBusWidth",): 6144,
    ("nvmlDeviceGetEnforcedPowerLimit",): 700_000,
    ("nvmlDeviceGetMaxClockInfo", 1): 1980,
    ("nvmlDeviceGetMaxClockInfo", 2): 3201,
    ("nvmlDeviceGetMaxPcieLinkGeneration",): 5,
    ("nvmlDeviceGetMaxPcieLinkWidth",): 16,
    ("nvmlDeviceGetMigMode",): (0, 0),
    ("nvmlDeviceGetComputeMode",): 0,
    ("nvmlDeviceGetPersistenceMode",): 1,
    ("nvmlGpmQueryDeviceSupport",): {"isSupportedDevice": 1},
    ("nvmlDeviceGetMemoryInfo",): {"total": 150_000_000_000, "used": 40_000_000_000},
    ("nvmlDeviceGetBAR1MemoryInfo",): {"bar1Used": 1_000_000},
    ("nvmlDeviceGetUtilizationRates",): {"gpu": 100, "memory": 37},
    ("nvmlDeviceGetEncoderUtilization",): (0, 167_000),
    ("nvmlDeviceGetDecoderUtilization",): (0, 167_000),
    ("nvmlDeviceGetPowerUsage",): 648_000,
    ("nvmlDeviceGetTemperature", 0): 51,
    ("nvmlDeviceGetClockInfo", 1): 1980,
    ("nvmlDeviceGetClockInfo", 2): 3201,
    ("nvmlDeviceGetCurrentClocksEventReasons",): 0,
    ("nvmlDeviceGetCurrPcieLinkGeneration",): 5,
    ("nvmlDeviceGetCurrPcieLinkWidth",): 16,
    ("nvmlDeviceGetRemappedRows",): (0, 0, 0, 0),
    **{("nvmlDeviceGetNvLinkState", link): 1 for link in range(18)},
}
FIELDS: dict[int, int] = {
    186: 648_000, 74: 0, 75: 0, 82: 60, 94: 0, 197: 1_000, 198: 2_000, 138: 10, 139: 20, 3: 0, 4: 0,
    161: 0, 162: 0, 163: 0,
}  # fmt: skip
# graphics 100 %, SM 80 %, ... of the small transformer in bf16 that the tests' series was recorded with
WORK = {1: 100.0, 2: 80.0, 3: 30.0, 4: 5.0, 5: 22.8, 7: 22.8, 8: 0.0, 9: 0.0, 10: 37.0, 11: 0.0, 12: 9.0, 13: 0.0,
        20: 12.0, 21: 20.0, 60: 0.0, 61: 0.0}  # fmt: skip
IDLE = {identity: 0.0 for identity in WORK} | {20: 1.4, 21: 1.0}
NOTHING = {identity: 0.0 for identity in WORK}


@dataclass
class FakeCard:
    """One card: an answer for each question; a question without one is not supported."""

    uuid: str
    answers: dict[tuple[Any, ...], Any] = field(default_factory=lambda: dict(HOPPER))
    fields: dict[Any, Any] = field(default_factory=lambda: dict(FIELDS))  # by number, or by number and scope
    processes: dict[str, list[Listed]] = field(default_factory=dict)
    shares: list[tuple[int, int, int]] = field(default_factory=list)
    activity: Mapping[int, float | None] = field(default_factory=lambda: WORK)
    gpm_refusal: int | None = None
    lost: bool = False
    broken: bool = False  # after a bad Xid: "Unknown Error" to everything but what the library remembers
    remembered: tuple[str, ...] = ("card", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetArchitecture")
    parts: list["FakeCard"] = field(default_factory=list)  # MIG devices
    blocks_in: str = ""  # a call that never comes back
    events: list[Happened] = field(default_factory=list)  # that wait for whoever watches the card


class FakeNvml:
    """See ``perfwatch_probes.nvml_layer.Nvml``.

    Args:
        cards: the machine's cards.
        refusal: what ``start`` refuses with.
    """

    def __init__(self, cards: Sequence[FakeCard] = (), refusal: Refused | None = None) -> None:
        self.cards = list(cards)
        self.asked: list[str] = []
        self.fields_refusal: Refused | None = None
        self._refusal = refusal

    def start(self) -> None:
        """Refuse, when told to."""
        if self._refusal is not None:
            raise self._refusal

    def card(self, index: int) -> FakeCard:
        """The card itself is its handle."""
        return self._reach(self.cards[index], "card")

    def mig_device(self, card: FakeCard, index: int) -> FakeCard:
        """Parts of a card; a place without one is not found."""
        if index >= len(card.parts):
            raise Refused(NOT_FOUND, "Not Found")
        return card.parts[index]

    def number(self, call: str, *arguments: Any) -> int:
        """One answer."""
        if call == "nvmlDeviceGetCount":
            return len(self.cards)
        return int(self._answer(call, *arguments))

    def numbers(self, call: str, *arguments: Any) -> tuple[int, ...]:
        """Several."""
        return tuple(self._answer(call, *arguments))

    def text(self, call: str, *arguments: Any) -> str:
        """A text."""
        if call == "nvmlSystemGetDriverVersion":
            return "580.159"
        if call == "nvmlDeviceGetUUID":
            return self._reach(arguments[0], call).uuid
        return str(self._answer(call, *arguments))

    def record(self, call: str, *arguments: Any) -> Mapping[str, Any]:
        """A structure."""
        return dict(self._answer(call, *arguments))

    def fields(self, handle: FakeCard, wanted: Sequence[tuple[int, int]]) -> list[int | float | Refused]:
        """Field values; an unknown one is not supported."""
        card = self._reach(handle, "fields")
        if self.fields_refusal is not None:
            raise self.fields_refusal
        unknown = Refused(NOT_SUPPORTED, "Not Supported")
        return [card.fields.get(one, card.fields.get(one[0], unknown)) for one in wanted]

    def processes(self, handle: FakeCard, kind: str) -> list[Listed]:
        """The card's list."""
        return self._reach(handle, f"processes {kind}").processes.get(kind, [])

    def process_utilisation(self, handle: FakeCard, since_microseconds: int) -> list[tuple[int, int, int]]:
        """Samples since then; none is "not found", as the driver says."""
        found = [one for one in self._reach(handle, "process_utilisation").shares if one[1] > since_microseconds]
        if not found:
            raise Refused(NOT_FOUND, "Not Found")
        return found

    def gpm_sample(self, handle: FakeCard, into: Any, instance: int | None) -> Any:
        """A sample remembers whose it is, and what the card does now."""
        card = self._reach(handle, "gpm")
        if instance is not None:
            card = card.parts[instance]
        if card.gpm_refusal is not None:
            raise Refused(card.gpm_refusal, "In use by another client")
        return {} | dict(card.activity)

    def gpm_metrics(self, first: Any, second: Any, wanted: Sequence[int]) -> list[float | None]:
        """What the card did when the second sample was taken."""
        return [second.get(identity) for identity in wanted]

    def watch_events(self, card: FakeCard, before: Any) -> list[Happened]:
        """A list of its own: what comes after a card was lost and found is told to who has asked anew."""
        card = self._reach(card, "watch_events")
        card.events = []
        return card.events

    def next_event(self, events: list[Happened]) -> Happened | None:
        """The oldest that is left, also of a card that is lost."""
        return events.pop(0) if events else None

    def _answer(self, call: str, card: FakeCard, *arguments: Any) -> Any:
        answers = self._reach(card, call).answers
        if (call, *arguments) not in answers:
            raise Refused(INVALID_ARGUMENT if arguments else NOT_SUPPORTED, "Not Supported")
        answer = answers[(call, *arguments)]
        if isinstance(answer, Refused):
            raise answer
        return answer

    def _reach(self, card: FakeCard, call: str) -> FakeCard:
        self.asked.append(call)
        if card.blocks_in and call.startswith(card.blocks_in):
            readable, _ = os.pipe()
            os.read(readable, 1)
        if card.lost:
            raise Refused(LOST, "GPU is lost")
        if card.broken and call not in card.remembered:
            raise Refused(UNKNOWN, "Unknown Error")
        return card


def answers(**changes: Any) -> dict[tuple[Any, ...], Any]:
    """Those of a Hopper card, some of them different."""
    return HOPPER | {(call,): answer for call, answer in changes.items()}


def machine(count: int, **changes: Any) -> FakeNvml:
    """So many cards that are alike."""
    return FakeNvml([FakeCard(f"GPU-{index:08x}", **changes) for index in range(count)])
