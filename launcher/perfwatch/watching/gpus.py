"""The GPUs of the watched job: readings from the sampler, and the outcome of each call for the recording."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from perfwatch.watching.failures import as_unavailable
from perfwatch_probes import readings as r
from perfwatch_probes.gpu import NONE_HERE, GpuProbe
from perfwatch_probes.gpu_binding import GpuBindingProbe
from perfwatch_probes.probe import Unavailable

COST_SECONDS = 2.0  # how often the sampler's own cost is recorded


class Gpus:
    """Takes the readings of all GPUs.

    Args:
        probe: the sampler.
        bindings: says whose the cards are.
        sink: takes how the looks went.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        probe: GpuProbe,
        bindings: GpuBindingProbe,
        sink: Callable[[Sequence[r.Reading]], None],
        clock: Callable[[], float],
    ) -> None:
        self._probe, self._bindings, self._sink, self._clock = probe, bindings, sink, clock
        self._gpus: dict[str, r.Gpu] = {}
        self._contexts: dict[tuple[str, int], r.GpuProcess] = {}
        self._users: set[int] = set()  # ever listed: one that lets go of a card is told too
        self._absent = False
        self._trouble = ""
        self._cost_due = 0.0
        self._charged = 0.0

    def look(self, full: bool) -> list[tuple[float, r.Reading]]:
        """What has come since the last look: (seconds ago, reading). Never waits, never raises.

        A machine without an NVIDIA driver, or without a card, is said once, as ``absent``: it is not missing.
        """
        if self._absent:
            return []
        try:
            found, trouble = self._probe.look(full), self._probe.trouble
        except Exception as error:
            found, trouble = [], as_unavailable(error)
        now = self._clock()
        self._absent = trouble is not None and trouble.reason in NONE_HERE
        if (trouble.reason if trouble else "") != self._trouble or (now >= self._cost_due and not trouble):
            self._say("absent" if self._absent else "unavailable" if trouble else "ok", trouble)
        for _, reading in found:
            self.remember(reading)
        return [(max(0.0, now - at), reading) for at, reading in found]

    def bind(self, ranks: Iterable[int], known: Mapping[int, r.Process]) -> list[r.GpuBinding]:
        """Which cards the ranks use, and what else of the job the driver lists, where that has changed."""
        self._users |= {one.local_pid for one in self._contexts.values() if one.local_pid is not None}
        wanted = [known[pid] for pid in dict.fromkeys([*ranks, *sorted(self._users)]) if pid in known]
        return self._bindings.look(wanted, list(self._gpus.values()), list(self._contexts.values()))

    def close(self) -> None:
        """End the sampler."""
        self._probe.close()

    def remember(self, reading: r.Reading) -> None:
        """Keep what says whose a card is."""
        if isinstance(reading, r.Gpu):
            self._gpus.pop(reading.number, None)
            self._gpus[reading.uuid] = reading
        elif isinstance(reading, r.GpuProcess):
            if reading.gone:
                self._contexts.pop((reading.uuid, reading.pid), None)
            else:
                self._contexts[reading.uuid, reading.pid] = reading

    def _say(self, outcome: str, why: Unavailable | None) -> None:
        self._trouble = why.reason if why else ""
        self._cost_due = self._clock() + COST_SECONDS
        spent, self._charged = self._probe.cpu_seconds - self._charged, self._probe.cpu_seconds
        call = r.ProbeCall(
            probe="gpu",
            entity="host",
            duration_seconds=0.0,
            cpu_seconds=round(spent, 6),
            outcome=outcome,
            reason=self._trouble,
            advice=why.advice if why else "",
        )
        self._sink([call])
