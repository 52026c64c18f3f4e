"""All cards of this machine, looked at in turn: what the sampler's process does between two commands.

Nothing here knows about processes or pipes (see ``nvml_process``). What does not answer is marked before it is asked, so
that another process can see for how long it has not come back.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from perfwatch_probes.nvml_card import Card
from perfwatch_probes.nvml_cards import open_card
from perfwatch_probes.nvml_gpm import CALM_SECONDS, NO_MORE, REFRESH_SECONDS, Gpm
from perfwatch_probes.nvml_layer import (
    DRIVER_NOT_LOADED,
    IN_USE,
    LIBRARY_NOT_FOUND,
    NEVER,
    NO_PERMISSION,
    UNKNOWN,
    UNREACHABLE,
    VERSION_MISMATCH,
    Nvml,
    Refused,
    ToLocal,
)
from perfwatch_probes.nvml_thinning import Thinning, Timed
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Gpu, GpuEvent, GpuSample, ProbeCall, Reading

XID_EVENT = 0x8
SLOW_SECONDS = 1.0  # processes, events, and what changes slowly
RARE_SECONDS = 10.0  # error counters, lost cards, GPM that another program holds
CALM_FACTOR = 2.0  # while the job is calm, both of them take longer
MOST_EVENTS = 64  # of one look: a card in an error loop must not hold us
_ADVICE = {
    LIBRARY_NOT_FOUND: (
        "install the driver's libnvidia-ml.so.1 (in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility) and"
        " nvidia-ml-py"
    ),
    DRIVER_NOT_LOADED: "load the kernel module: sudo modprobe nvidia (in a container: docker run --gpus all)",
    VERSION_MISMATCH: "the driver was updated under the running kernel module: reboot, or reload the nvidia modules",
}
NO_CARDS = "the NVIDIA driver has no GPU for us"
_GPM_ADVICE = {
    NO_PERMISSION: "run perfwatch as root, or load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0",
    IN_USE: "end the other user of the counters: dcgmi profile --pause, or the running ncu or nsys",
}

Mark = Callable[[str, str], AbstractContextManager[None]]


@contextmanager
def unmarked(call: str, uuid: str = "") -> Iterator[None]:
    """For a layer that cannot block."""
    yield


class Sampler:
    """Looks at all cards.

    Args:
        nvml: whom to ask.
        clock: CLOCK_MONOTONIC, seconds.
        mark: tells what is asked, of which card, while it is asked.
        to_local: the pid in our namespace of a process that NVML lists, or None.
        wall: unix time, seconds.
        others: further GPM metrics, by name.
    """

    def __init__(
        self,
        nvml: Nvml,
        clock: Callable[[], float],
        mark: Mark = unmarked,
        to_local: ToLocal = lambda pid, minor: pid,
        wall: Callable[[], float] = time.time,
        others: Mapping[str, int] = NO_MORE,
    ) -> None:
        self.thinning = Thinning()
        self._wall, self._others = wall, others
        self._nvml, self._clock, self._mark, self._to_local = nvml, clock, mark, to_local
        self._cards: dict[int, list[tuple[Card, Gpm | None]]] = {}  # by number: the card, then its MIG devices
        self._lost: set[int] = set()
        self._version = ""
        self._count = 0
        self._events: dict[int, tuple[str, Any]] = {}  # by number, lost cards too: whose, and what tells them
        self._slow_due = self._rare_due = 0.0
        self._troubles: dict[tuple[str, str], str] = {}
        self._said: list[ProbeCall] = []

    def start(self) -> list[Timed]:
        """Connect and describe every card. Raises Unavailable when there is no driver to talk to."""
        try:
            with self._mark("init", ""):
                self._nvml.start()
                self._version = self._nvml.text("nvmlSystemGetDriverVersion")
                self._count = self._nvml.number("nvmlDeviceGetCount")
        except Refused as refused:
            raise Unavailable(f"NVML: {refused.text}", _ADVICE.get(refused.code, "")) from None
        if not self._count:
            raise Unavailable(NO_CARDS, "lspci -d 10de: shows NVIDIA cards; in a container: docker run --gpus all")
        return self._stamped([one for index in range(self._count) for one in self._open(index)])

    def round(self) -> list[Timed]:
        """One look at every card; returns what is to be told now."""
        now = self._clock()
        slow, rare = now >= self._slow_due, now >= self._rare_due
        patience = 1.0 if self.thinning.full else CALM_FACTOR
        self._slow_due = now + patience * SLOW_SECONDS if slow else self._slow_due
        self._rare_due = now + patience * RARE_SECONDS if rare else self._rare_due
        samples: list[GpuSample] = []
        told: list[Reading] = []
        compared = self._compared(now)
        for index in list(self._cards):
            try:
                for card, gpm in self._cards[index]:
                    with self._mark("sample", card.gpu.uuid):
                        sample = card.sample(now, slow, rare, self.thinning.full)
                    if card.refusal is None:
                        samples.append(sample)
                    elif slow:  # in a whole round nothing was answered
                        raise card.refusal
                    if gpm is not None and gpm in compared:
                        told += self._activity(card, gpm)
                    if slow:
                        with self._mark("processes", card.gpu.uuid):
                            told += card.processes()
                    if rare and card.gpu.parent_uuid is None:
                        with self._mark("errors", card.gpu.uuid):
                            told += [one for one in [card.errors()] if one is not None]
            except Refused as refused:
                told += self._close(index, refused)
        if slow:
            told += self._happened()
        if rare:
            for index in sorted(self._lost):
                told += self._open(index)
        return [*self.thinning.put(self._clock(), samples), *self._stamped(told)]

    def attend(self) -> list[Timed]:
        """From now on everything is wanted; returns the samples of the last half minute."""
        self._slow_due = self._rare_due = 0.0
        return self.thinning.fill()

    def rest(self) -> None:
        """One sample and one activity a second are enough."""
        self.thinning.rest()

    def _monitored(self) -> list[Gpm]:
        return [gpm for devices in self._cards.values() for _, gpm in devices if gpm is not None]

    def _compared(self, now: float) -> list[Gpm]:
        """Whose GPM is looked at in this round: while calm, of one card, for it is what costs most."""
        if self.thinning.full:
            return [gpm for gpm in self._monitored() if not gpm.refused or gpm.due <= now]
        due = sorted((gpm for gpm in self._monitored() if gpm.due <= now), key=lambda gpm: gpm.due)
        new = [gpm for gpm in due if not gpm.due]
        return new or due[:1]

    def _activity(self, card: Card, gpm: Gpm) -> list[Reading]:
        uuid = card.gpu.uuid
        now = self._clock()
        try:
            with self._mark("gpm", uuid):
                activity = gpm.look(now)
        except Refused as refused:
            if refused.code in UNREACHABLE:
                raise
            gpm.due, gpm.refused = now + RARE_SECONDS, True
            self._say(
                "gpm",
                uuid,
                f"GPM of gpu {card.gpu.index}: {refused.text}",
                _GPM_ADVICE.get(refused.code, _GPM_ADVICE[IN_USE]),
            )
            return []
        gpm.due = now + (CALM_SECONDS if activity is not None else REFRESH_SECONDS)
        gpm.refused = False
        self._say("gpm", uuid)
        return [] if activity is None else [activity]

    def _open(self, index: int) -> list[Reading]:
        """Describe a card and its MIG devices; a card that cannot be reached is tried again later."""
        try:
            with self._mark("init", f"gpu {index}"):
                devices = open_card(self._nvml, index, self._version, self._to_local, self._wall, self._others)
            if index in self._lost:
                with self._mark("sample", devices[0][0].gpu.uuid):
                    devices[0][0].answer(self._clock())
        except Refused as refused:
            return self._close(index, refused)
        self._cards[index] = devices
        self._watch_events(index, devices[0][0].gpu.uuid)
        self._lost.discard(index)
        self._say("gpu", f"gpu {index}")
        return [card.gpu for card, _ in devices]

    def _close(self, index: int, refused: Refused) -> list[Reading]:
        """A card that no longer answers sensibly: said once, tried again now and then."""
        devices = self._cards.pop(index, [])
        known = index in self._lost
        self._lost.add(index)
        self._say("gpu", f"gpu {index}", f"gpu {index}: {refused.text}", "dmesg | grep -i xid; nvidia-smi -q")
        if known or refused.code not in (*UNREACHABLE, UNKNOWN):
            return []
        unknown = Gpu(uuid=f"gpu {index}", index=index, name="", driver_version=self._version, lost=True)
        return [msgspec.structs.replace(card.gpu, lost=True) for card, _ in devices] or [unknown]

    def _watch_events(self, index: int, uuid: str) -> None:
        _, before = self._events.pop(index, ("", None))
        try:
            with self._mark("events", uuid):
                self._events[index] = uuid, self._nvml.watch_events(self._nvml.card(index), before)
        except Refused as refused:
            self._say("gpu events", uuid, f"Xid events of gpu {index}: {refused.text}", "the kernel log has them too")
        else:
            self._say("gpu events", uuid)

    def _happened(self) -> list[Reading]:
        """Xids since the last look, of lost cards too: theirs say why."""
        found: list[Reading] = []
        for index, (uuid, events) in list(self._events.items()):
            for _ in range(MOST_EVENTS):
                try:
                    with self._mark("events", uuid):
                        event = self._nvml.next_event(events)
                except Refused as refused:
                    if refused.code in NEVER:
                        del self._events[index]
                    break
                if event is None:
                    break
                if event.kind == XID_EVENT:
                    found.append(GpuEvent(uuid=uuid, xid=event.data))
        return found

    def _say(self, probe: str, entity: str, reason: str = "", advice: str = "") -> None:
        """What cannot be had, when that is new; without a reason: it can be had (again)."""
        if self._troubles.get((probe, entity), "") == reason:
            return
        if reason:
            self._troubles[probe, entity] = reason
        else:
            del self._troubles[probe, entity]
        outcome = "unavailable" if reason else "ok"
        self._said.append(
            ProbeCall(probe=probe, entity=entity, duration_seconds=0.0, outcome=outcome, reason=reason, advice=advice)
        )

    def _stamped(self, readings: list[Reading]) -> list[Timed]:
        """With the time, and with what could not be had."""
        now = self._clock()
        said, self._said = self._said, []
        return [(now, one) for one in (*readings, *said)]
