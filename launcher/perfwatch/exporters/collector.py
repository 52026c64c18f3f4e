"""The process that posts the metrics to an OpenTelemetry collector (``--otlp``), which then need not reach this machine."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from perfwatch.exporters.heartbeat import why_not
from perfwatch.exporters.metrics import SnapshotClient
from perfwatch.exporters.notifier import post_json
from perfwatch.exporters.otlp import export_request
from perfwatch.exporters.snapshot import NodeSnapshot, Snapshot
from perfwatch.exporters.wanted import CollectorWanted
from perfwatch.processes.channel import Channel, Message
from perfwatch_probes.deadline import KillableChild

EVERY_SECONDS = 15.0
DEADLINE_SECONDS = 10.0
FORGET_SECONDS = 600.0  # a job of which nothing more is heard


class CollectorClient(SnapshotClient):
    """Posts the snapshots that it is given, every few seconds and once more at the end. ``news()`` says what became of it.

    Args:
        wanted: the collector.
        every_seconds: how often.
    """

    def __init__(self, wanted: CollectorWanted, every_seconds: float = EVERY_SECONDS) -> None:
        super().__init__("perfwatch-otlp", lambda channel: _Push(channel, wanted, every_seconds).serve(), finishes=True)


@dataclass
class _Push:
    """Runs in the helper."""

    channel: Channel
    wanted: CollectorWanted
    every_seconds: float
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._jobs: dict[str, Snapshot] = {}
        self._node: NodeSnapshot | None = None
        self._caller, self._said = KillableChild(), set[str]()
        self._fresh = False

    def serve(self) -> None:
        due = self.clock()
        while not self.channel.closed:
            left = max(0.0, due - self.clock())
            for message in self.channel.receive(left if self._fresh else None):
                self._take(message)
            if self._fresh and self.clock() >= due:
                due = self.clock() + self.every_seconds
                self._post()
        if self._fresh:
            self._post()
        self._caller.close()

    def _take(self, message: Message) -> None:
        if "snapshot" in message:
            snapshot = msgspec.convert(message["snapshot"], Snapshot)
            self._jobs[snapshot.session], self._fresh = snapshot, True
        if "node" in message:
            self._node, self._fresh = msgspec.convert(message["node"], NodeSnapshot), True
        self._jobs.pop(message.get("drop", ""), None)

    def _post(self) -> None:
        now, self._fresh = time.time(), False
        self._jobs = {name: job for name, job in self._jobs.items() if now - job.looked < FORGET_SECONDS}
        body = json.dumps(export_request(self._jobs.values(), self._node, os.uname().nodename, now)).encode()
        asked = (self.wanted.url, body, dict(self.wanted.headers), DEADLINE_SECONDS)
        why = why_not(lambda: self._caller.call(post_json, *asked, deadline_seconds=DEADLINE_SECONDS)[0])
        again = f"they are posted again every {self.every_seconds:.0f} s"
        if why and why not in self._said:
            self._said.add(why)
            say = f"the OpenTelemetry collector at {self.wanted.host} did not take the metrics: {why}; {again}"
            self.channel.send({"say": say})
