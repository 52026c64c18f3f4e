"""The GPUs beside the watched job: what has come from the sampler, and how it went, as the recording wants it."""

from collections.abc import Callable, Sequence

from perfwatch.probes import readings as r
from perfwatch.probes.gpu import ABSENT, GpuProbe
from perfwatch.probes.probe import Unavailable

COST_SECONDS = 10.0  # how often the sampler's own cost is recorded


class Gpus:
    """Takes the readings of all GPUs.

    Args:
        probe: the sampler.
        sink: takes how the looks went.
        clock: monotonic seconds.
    """

    def __init__(
        self, probe: GpuProbe, sink: Callable[[Sequence[r.Reading]], None], clock: Callable[[], float]
    ) -> None:
        self._probe, self._sink, self._clock = probe, sink, clock
        self._absent = False
        self._trouble = ""
        self._cost_due = 0.0
        self._charged = 0.0

    def look(self, full: bool) -> list[tuple[float, r.Reading]]:
        """What has come since the last look: (seconds ago, reading). Never waits, never raises.

        A machine without an NVIDIA driver is said once, as ``absent``: nobody misses what was never there.
        """
        if self._absent:
            return []
        try:
            found = self._probe.look(full)
        except Unavailable as unavailable:
            self._absent = unavailable.reason == ABSENT
            self._say("absent" if self._absent else "unavailable", unavailable)
            return []
        now = self._clock()
        trouble = self._probe.trouble
        if (trouble.reason if trouble else "") != self._trouble:
            self._say("unavailable" if trouble else "ok", trouble)
        elif now >= self._cost_due and not trouble:
            self._say("ok", None)
        return [(max(0.0, now - at), reading) for at, reading in found]

    def close(self) -> None:
        """End the sampler."""
        self._probe.close()

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
