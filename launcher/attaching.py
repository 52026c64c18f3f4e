"""Attach to a job: find it, record it, watch it until the verdict is clear (or for as long as the user stays)."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from perfwatch import __version__
from perfwatch.errors import SessionUnwritable
from perfwatch.oneshot import OneShot
from perfwatch.probes.deadline import KillableChild
from perfwatch.probes.filesystem import Filesystem
from perfwatch.recording import Recorder
from perfwatch.session import Session, choose_directory, this_machine
from perfwatch.target import find_job
from perfwatch.triage.verdict import Verdict
from perfwatch.watch import News, Watch

COUNTDOWN_EVERY_SECONDS = 10.0


class Attached:
    """A look at one running job.

    Args:
        pid: any process of the job.
        session: where to keep the recording; the first local disk by default.
        patience_seconds: for temporal ends.
    """

    def __init__(self, pid: int, *, session: str | None = None, patience_seconds: float = 60.0) -> None:
        prefer_to_die()
        filesystem, child = Filesystem(), KillableChild()
        target = find_job(filesystem, pid, child)
        created = time.time()
        described = Session(
            version=__version__,
            created=created,
            mode="attach",
            machine=this_machine(),
            command=target.root.command,
            root_pids=(target.root.pid,),
            conditions={"patience_seconds": patience_seconds, "world_size": target.asked.world_size},
        )
        self.loss = ""
        self.folder: Path | None = None
        self._recorder: Recorder | None = None
        try:
            self.folder = choose_directory(
                Path(session) if session else None, os.environ, child, created=created, pid=os.getpid()
            )
            self._recorder = Recorder(self.folder, described)
        except SessionUnwritable as error:  # a diagnosis without a recording is better than none
            self.loss = error.message
        child.close()
        self._news: Callable[[News], None] = lambda _: None
        self._watch = Watch(
            [target.root.pid], described, recorder=self._recorder, eager=True, on_news=lambda news: self._news(news)
        )

    def decide(self, say: IO[str]) -> Verdict:
        """Look until the verdict is clear; Ctrl-C gives what is known. The countdown of a suspicion goes to ``say`` on a terminal."""
        shot = OneShot()
        judged, told = None, 0.0
        try:
            while True:
                pause = self._watch.tick()
                verdict = self._watch.last
                if verdict is not None and verdict is not judged:
                    judged = verdict
                    if shot.done(verdict, self._watch.at):
                        return self._final(verdict)
                    if verdict.suspect and say.isatty() and self._watch.at - told > COUNTDOWN_EVERY_SECONDS:
                        told = self._watch.at
                        say.write(
                            f"perfwatch: {verdict.summary}; decides in {verdict.suspect.decides_in_seconds:.0f} s\n"
                        )
                time.sleep(pause)
        except KeyboardInterrupt:
            return self._final(self._watch.verdict())

    def stay(self, say: IO[str]) -> Verdict:
        """Report every change on ``say`` until the job ends or the user leaves (Ctrl-C); returns the last verdict."""
        self._news = lambda news: _tell(say, news)
        try:
            while True:
                pause = self._watch.tick()
                if self._watch.last is not None and self._watch.last.state == "gone":
                    return self._final(self._watch.last)
                time.sleep(pause)
        except KeyboardInterrupt:
            return self._final(self._watch.verdict())

    def close(self) -> None:
        """End our own children and the recording."""
        self._watch.close()
        if self._recorder is not None:
            self.loss = self._recorder.close() or self.loss

    def _final(self, verdict: Verdict) -> Verdict:
        if self._recorder is not None:
            self._recorder.event(self._watch.at, "verdict", verdict.summary, verdict)
        return verdict


def _tell(say: IO[str], news: News) -> None:
    say.write(f"perfwatch: {news.at:.1f} s {news.kind}: {news.verdict.state if news.verdict else ''} {news.text}\n")
    say.flush()


def prefer_to_die() -> None:
    """If memory runs out, the kernel shall take us, not the job (oom_score_adj 1000); not permitted: so be it."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        pass
