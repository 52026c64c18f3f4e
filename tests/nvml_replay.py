"""A real driver, recorded: every question that the sampler asks a card, its answer, and how much CPU time the answer took.

``Recording`` writes it down on a machine that has a card. ``Replayed`` answers from it, as so many cards as are wanted, and uses
up the same CPU time for each call: what a machine with eight cards would cost can be measured without one.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from perfwatch_probes.nvml_layer import NOT_FOUND, Happened, Listed, Nvml, Refused

T = TypeVar("T")
LIBRARY = "nvmlDeviceGetCount", "nvmlSystemGetDriverVersion"  # questions that are about no card
UUID = "nvmlDeviceGetUUID"
NOBODY = "GPU-00000000-0000-0000-0000-000000000000"
ROUNDS = 20  # of which the least CPU time counts


class Recording:
    """Asks another layer about its first card, once for each question, and remembers the answers.

    Args:
        nvml: the real one.
    """

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self.answers: dict[str, dict[str, Any]] = {}

    def start(self) -> None:
        """Connect."""
        self._nvml.start()

    def card(self, index: int) -> Any:
        """The real handle."""
        return self._nvml.card(index)

    def mig_device(self, card: Any, index: int) -> Any:
        """Cards with MIG on are not recorded."""
        raise Refused(NOT_FOUND)

    def number(self, call: str, *arguments: Any) -> int:
        """See the protocol; so below."""
        return self._keep(_key(call, arguments), lambda: self._nvml.number(call, *arguments))

    def numbers(self, call: str, *arguments: Any) -> tuple[int, ...]:
        """Several numbers."""
        return self._keep(_key(call, arguments), lambda: self._nvml.numbers(call, *arguments))

    def text(self, call: str, *arguments: Any) -> str:
        """A text; the card's identity stays where it is."""
        return self._keep(_key(call, arguments), lambda: NOBODY if call == UUID else self._nvml.text(call, *arguments))

    def record(self, call: str, *arguments: Any) -> Mapping[str, Any]:
        """A structure; only what fits into JSON."""
        members = self._keep(_key(call, arguments), lambda: _plain(self._nvml.record(call, *arguments)))
        return members

    def fields(self, handle: Any, wanted: Sequence[tuple[int, int]]) -> list[int | float | Refused]:
        """Each field by itself: their costs add up."""
        return [self._field(handle, *field) for field in wanted]

    def processes(self, handle: Any, kind: str) -> list[Listed]:
        """Who was there is nobody's business: the time is kept, the list is not."""
        self._keep(f"processes {kind}", lambda: bool(self._nvml.processes(handle, kind)) and None)
        return []

    def process_utilisation(self, handle: Any, since_microseconds: int) -> list[tuple[int, int, int]]:
        """The same."""
        self._keep("process_utilisation", lambda: self._nvml.process_utilisation(handle, since_microseconds) and None)
        return []

    def gpm_sample(self, handle: Any, into: Any, instance: int | None) -> Any:
        """The time of one look; two real ones are a refresh apart."""
        sample = self._nvml.gpm_sample(handle, None, instance)
        self._keep("gpm_sample", lambda: self._nvml.gpm_sample(handle, sample, instance) and None)
        return sample

    def gpm_metrics(self, first: Any, second: Any, wanted: Sequence[int]) -> list[float | None]:
        """The values by their ids."""
        told = self._keep(
            "gpm_metrics",
            lambda: {
                str(one): value
                for one, value in zip(wanted, self._nvml.gpm_metrics(first, second, wanted), strict=True)
            },
        )
        return [told[str(one)] for one in wanted]

    def watch_events(self, card: Any, before: Any) -> Any:
        """The real set."""
        return self._nvml.watch_events(card, before)

    def next_event(self, events: Any) -> Happened | None:
        """The time of asking for nothing."""
        self._keep("next_event", lambda: self._nvml.next_event(events) and None)
        return None

    def save(self, path: Path) -> None:
        """One question a line."""
        lines = (f"{json.dumps(key)}: {json.dumps(answer)}" for key, answer in sorted(self.answers.items()))
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")

    def _field(self, handle: Any, identity: int, scope: int) -> int | float | Refused:
        def ask() -> int | float:
            (answer,) = self._nvml.fields(handle, [(identity, scope)])
            if isinstance(answer, Refused):
                raise answer
            return answer

        try:
            return self._keep(f"field {identity} {scope}", ask)
        except Refused as refused:
            return refused

    def _keep(self, key: str, ask: Callable[[], T]) -> T:
        costs = []
        refusal: Refused | None = None
        for _ in range(1 if key in self.answers else ROUNDS):
            began = time.process_time_ns()
            try:
                answer = ask()
            except Refused as refused:
                refusal = refused
            costs.append((time.process_time_ns() - began) / 1000)
        kept: dict[str, Any] = {"refused": refusal.code} if refusal else {"answer": answer}
        self.answers.setdefault(key, {**kept, "microseconds": round(min(costs), 1)})
        if refusal is not None:
            raise refusal
        return answer


class Replayed:
    """Answers from a recording.

    Args:
        path: what ``Recording.save`` wrote.
        cards: how many there are.
        busy: uses up so many seconds of CPU time.
    """

    def __init__(self, path: Path, cards: int = 1, busy: Callable[[float], None] | None = None) -> None:
        self._answers: dict[str, dict[str, Any]] = json.loads(path.read_text())
        self._cards = cards
        self._busy = busy or spin

    def start(self) -> None:
        """Nothing to do."""

    def card(self, index: int) -> int:
        """The number itself is the handle."""
        return index

    def mig_device(self, card: int, index: int) -> int:
        """None was recorded."""
        raise Refused(NOT_FOUND)

    def number(self, call: str, *arguments: Any) -> int:
        """See the protocol; so below."""
        return self._cards if call == "nvmlDeviceGetCount" else int(self._answer(_key(call, arguments)))

    def numbers(self, call: str, *arguments: Any) -> tuple[int, ...]:
        """Several numbers."""
        return tuple(self._answer(_key(call, arguments)))

    def text(self, call: str, *arguments: Any) -> str:
        """Each card has a UUID of its own."""
        answer = str(self._answer(_key(call, arguments)))
        return f"{answer[:-2]}{arguments[0]:02}" if call == UUID else answer

    def record(self, call: str, *arguments: Any) -> Mapping[str, Any]:
        """A structure."""
        return dict(self._answer(_key(call, arguments)))

    def fields(self, handle: int, wanted: Sequence[tuple[int, int]]) -> list[int | float | Refused]:
        """Each by itself."""
        return [self._field(*field) for field in wanted]

    def processes(self, handle: int, kind: str) -> list[Listed]:
        """One process on each card."""
        self._answer(f"processes {kind}")
        return [Listed(1000 + handle, 2**30)] if kind == "compute" else []

    def process_utilisation(self, handle: int, since_microseconds: int) -> list[tuple[int, int, int]]:
        """It uses the card all the time."""
        self._answer("process_utilisation")
        return [(1000 + handle, since_microseconds + 1, 100)]

    def gpm_sample(self, handle: int, into: Any, instance: int | None) -> object:
        """Any token will do."""
        self._answer("gpm_sample")
        return handle

    def gpm_metrics(self, first: Any, second: Any, wanted: Sequence[int]) -> list[float | None]:
        """What was recorded."""
        told = self._answer("gpm_metrics")
        return [told.get(str(one)) for one in wanted]

    def watch_events(self, card: int, before: Any) -> object:
        """Any token will do."""
        return card

    def next_event(self, events: Any) -> Happened | None:
        """None."""
        self._answer("next_event")
        return None

    def _field(self, identity: int, scope: int) -> int | float | Refused:
        try:
            answer: int | float = self._answer(f"field {identity} {scope}")
        except Refused as refused:
            return refused
        return answer

    def _answer(self, key: str) -> Any:
        kept = self._answers.get(key, {"refused": NOT_FOUND, "microseconds": 0})
        self._busy(kept["microseconds"] / 1e6)
        if "refused" in kept:
            raise Refused(kept["refused"])
        return kept["answer"]


def spin(seconds: float) -> None:
    """Use up CPU time."""
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        pass


def _key(call: str, arguments: Sequence[Any]) -> str:
    """Without the handle of the card, which comes first."""
    return " ".join([call, *(str(one) for one in arguments[0 if call in LIBRARY else 1 :])])


def _plain(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if isinstance(value, int | float | str)}
