"""What looking has cost since the session began, added up as the readings come: a watch of days forgets the single calls."""

from dataclasses import dataclass

from perfwatch_probes.readings import ProbeCall


@dataclass
class Spent:
    """Totals over all calls of all probes."""

    cpu_seconds: float = 0.0
    stack_dumps: int = 0
    target_paused_seconds: float = 0.0

    def add(self, call: ProbeCall) -> None:
        """One more call. What py-spy cost is charged in a line of its own, which is no dump."""
        self.cpu_seconds += call.cpu_seconds or 0.0
        self.stack_dumps += call.probe.startswith("stack") and call.outcome == "ok" and call.entity != "py-spy"
        self.target_paused_seconds += call.target_paused_seconds
