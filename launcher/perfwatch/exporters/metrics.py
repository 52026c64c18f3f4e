"""The process that serves the metrics: it holds the latest snapshots, and a scraper meets only it."""

from collections.abc import Iterator

import msgspec

from perfwatch.exporters.snapshot import NodeSnapshot, Snapshot
from perfwatch.exporters.wanted import MetricsWanted, remove_socket
from perfwatch.processes.channel import Channel, Message
from perfwatch.processes.helper import HelperClient
from perfwatch.text import duration

AGAIN_SECONDS = 10.0  # until a port that is taken is tried again: it may be that of a watch that is just ending


class SnapshotClient(HelperClient):
    """Takes snapshots for its helper. Command lines are other users' secrets and go no further, unless they are asked for."""

    shows_commands = False

    def put(self, snapshot: Snapshot) -> None:
        """Replace what is known of a session."""
        shown = snapshot if self.shows_commands else msgspec.structs.replace(snapshot, command="")
        self._helper.send({"snapshot": msgspec.to_builtins(shown)})

    def put_node(self, node: NodeSnapshot) -> None:
        """Replace what is known of the node."""
        self._helper.send({"node": msgspec.to_builtins(node)})

    def drop(self, session: str) -> None:
        """A session is over."""
        self._helper.send({"drop": session})


class MetricsServer(SnapshotClient):
    """Serves the snapshots that it is given. ``news()`` says what became of it.

    Args:
        wanted: where, for whom, and whether command lines are shown.
    """

    def __init__(self, wanted: MetricsWanted) -> None:
        super().__init__("perfwatch-metric", lambda channel: _serve(channel, wanted))
        self.address = ""  # once it listens, as a scraper writes it
        self._wanted, self.shows_commands = wanted, wanted.command

    def close(self) -> None:
        """Stop serving."""
        super().close()
        if self._wanted.socket is not None and self.address:
            remove_socket(self._wanted.socket)

    def _heard(self, message: Message) -> None:
        self.address = message.get("address", self.address)


def _serve(channel: Channel, wanted: MetricsWanted) -> None:
    """Runs in the helper, which alone pays for the import (100 ms)."""
    from prometheus_client import CollectorRegistry, Metric
    from prometheus_client.registry import Collector

    from perfwatch.exporters.families import families
    from perfwatch.exporters.metrics_endpoint import serve_metrics

    latest: dict[str, Snapshot] = {}
    nodes: list[NodeSnapshot] = []  # the newest, where there is one

    class Jobs(Collector):
        def collect(self) -> Iterator[Metric]:
            return families(list(latest.values()), nodes[-1] if nodes else None)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Jobs())
    refused = listening = False
    while not channel.closed:
        if not listening:
            try:
                address = serve_metrics(wanted, registry)
                listening = True
                channel.send({"address": address, "say": f"metrics are served on {address}"})
            except OSError as error:
                if not refused:
                    channel.send({"say": _refusal(wanted, error)})
                refused = True
        for message in channel.receive(None if listening else AGAIN_SECONDS):
            if "snapshot" in message:
                snapshot = msgspec.convert(message["snapshot"], Snapshot)
                latest[snapshot.session] = snapshot
            if "node" in message:
                nodes[:] = [msgspec.convert(message["node"], NodeSnapshot)]
            latest.pop(message.get("drop", ""), None)


def _refusal(wanted: MetricsWanted, error: OSError) -> str:
    address = f"[{wanted.address}]" if ":" in wanted.address else wanted.address
    where = str(wanted.socket) if wanted.socket is not None else f"{address}:{wanted.port}"
    other = (
        "another path: --metrics-socket PATH"
        if wanted.socket is not None
        else "another port: --metrics-port PORT; any free one: --metrics-port 0"
    )
    return (
        f"no metrics on {where}: {error.strerror or error}; the job and its watch continue, and it is tried again every "
        f"{duration(AGAIN_SECONDS)} ({other})"
    )
