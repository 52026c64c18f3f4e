"""The process that serves the metrics: it holds the latest snapshots, and whoever scrapes it meets only it."""

from collections.abc import Iterator

import msgspec

from perfwatch.outlets.snapshot import NodeSnapshot, Snapshot
from perfwatch.running.channel import Channel
from perfwatch.running.helper import Helper

AGAIN_SECONDS = 10.0  # until a port that is taken is tried again: it may be that of a watch that is just ending


class MetricsServer:
    """Serves the snapshots that it is given. ``news()`` says what became of it.

    Args:
        address: where to listen.
        port: 0 takes a free one.
    """

    def __init__(self, address: str, port: int) -> None:
        self.port: int | None = None  # once it listens
        self._helper = Helper("perfwatch-metric", lambda channel: _serve(channel, address, port))

    def put(self, snapshot: Snapshot) -> None:
        """Replace what is known of a session."""
        self._helper.send({"snapshot": msgspec.to_builtins(snapshot)})

    def put_node(self, node: NodeSnapshot) -> None:
        """Replace what is known of the node."""
        self._helper.send({"node": msgspec.to_builtins(node)})

    def drop(self, session: str) -> None:
        """A session is over."""
        self._helper.send({"drop": session})

    def fileno(self) -> int:
        """For poll(): readable when there is news."""
        return self._helper.fileno()

    def news(self) -> list[str]:
        """Sentences for the user."""
        said = []
        for message in self._helper.hear():
            self.port = message.get("port", self.port)
            said += [message["say"]] if "say" in message else []
        return said

    def close(self) -> None:
        """Stop serving."""
        self._helper.close()


def _serve(channel: Channel, address: str, port: int) -> None:
    """Runs in the helper, which alone pays for the import (100 ms)."""
    from prometheus_client import CollectorRegistry, Metric, start_http_server
    from prometheus_client.registry import Collector

    from perfwatch.outlets.families import families

    latest: dict[str, Snapshot] = {}
    nodes: list[NodeSnapshot] = []  # the newest, where there is one

    class Jobs(Collector):
        def collect(self) -> Iterator[Metric]:
            return families(list(latest.values()), nodes[-1] if nodes else None)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Jobs())
    where = f"{address}:{port}" if ":" not in address else f"[{address}]:{port}"
    refused = listening = False
    while not channel.closed:
        if not listening:
            try:
                server, _ = start_http_server(port, addr=address, registry=registry)
                listening = True
                number = server.server_port
                channel.send(
                    {"port": number, "say": f"metrics are served on http://{where.rpartition(':')[0]}:{number}/metrics"}
                )
            except OSError as error:
                if not refused:
                    channel.send({"say": _refusal(where, error)})
                refused = True
        for message in channel.receive(None if listening else AGAIN_SECONDS):
            if "snapshot" in message:
                snapshot = msgspec.convert(message["snapshot"], Snapshot)
                latest[snapshot.session] = snapshot
            if "node" in message:
                nodes[:] = [msgspec.convert(message["node"], NodeSnapshot)]
            latest.pop(message.get("drop", ""), None)


def _refusal(where: str, error: OSError) -> str:
    return (
        f"no metrics on {where}: {error.strerror or error}; the job and its watch go on, and it is tried again every "
        f"{AGAIN_SECONDS:.0f} s (another port: --metrics-port PORT; any free one: --metrics-port 0)"
    )
