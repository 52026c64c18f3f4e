"""A verdict from a recording: the verdict itself, between where it comes from and how the job ended."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from perfwatch.recording.recording import Recording
from perfwatch.report.moment import lasts, of_its_time
from perfwatch.report.sentences import lived_text
from perfwatch.report.story import about
from perfwatch.report.terminal import VerdictReport
from perfwatch.text import clean, duration
from perfwatch.verdict import Verdict


@dataclass(frozen=True)
class ReplayReport:
    """``verdict`` as judged ``at`` seconds after the start of ``recording``, which lies in ``folder``.

    lived: where that is on how the job ended, the last one while it lived.
    """

    folder: Path
    recording: Recording
    at: float
    verdict: Verdict
    lived: Verdict | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the origin, the verdict, what was said at the time where that differs, and the outcome."""
        yield Text(f"{clean(str(self.folder))}", style="dim", overflow="fold")
        facts = dict(about(self.recording))
        session = self.recording.session
        known = "".join(f", {name} {facts[name]}" for name in ("user", "job", "pid", "versions") if name in facts)
        command = facts.get("command", "no command")
        yield Text(clean(f"{session.mode} on {session.machine.name}: {command}{known}"), style="dim", overflow="fold")
        yield Text(f"judged at {duration(self.at)} of {duration(self.recording.end)}", style="dim")
        yield VerdictReport(of_its_time(self.recording, self.verdict), lasts(self.recording, self.at, self.verdict))
        if self.lived is not None:
            yield Text(clean(lived_text(self.lived)))
        yield from self._then()
        for kind in ("shed", "outcome"):  # of each the last one: it counts up, or it is the only one
            for event in [event for event in self.recording.events if event.kind == kind][-1:]:
                yield Text(f"{kind} after {duration(event.at)}: {clean(event.text)}", style="bold")
        if left_out := self.recording.left_out:
            yield Text(f"left out: {left_out}", style="yellow")

    def _then(self) -> Iterator[RenderableType]:
        """What was said when the job was watched, if today's rules say something else."""
        then = next((e.verdict for e in self.recording.events if e.verdict is not None and e.at == self.at), None)
        if then is not None and (then.state, then.cause) != (self.verdict.state, self.verdict.cause):
            yield Text(
                f"perfwatch {clean(self.recording.session.version)} said then: {then.state} {clean(then.cause or '')}",
                style="yellow",
            )
