"""Perfetto's track events, one call each. Names are stored once and referred to by number."""

from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as trace

NANOSECONDS = 1_000_000_000
SEQUENCE = 1
REALTIME, BOOTTIME = 1, 6  # perfetto's BuiltinClock
LONGEST_NAME = 500


class Tracks:
    """Gathers packets.

    Args:
        created: unix time of the moment that all times count from.
    """

    def __init__(self, created: float) -> None:
        self._trace = trace.Trace()
        self._created = round(created * NANOSECONDS)
        self._tracks: dict[tuple[object, ...], int] = {}
        self._names: dict[str, int] = {}
        packet = self._packet()
        packet.sequence_flags = trace.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        for clock in (REALTIME, BOOTTIME):  # the default clock of a trace runs as unix time here
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=self._created)

    def track(self, name: str, parent: int | None = None) -> int:
        """A track of slices and instants; the same one for the same name."""
        return self._described(("track", name, parent), name, parent)

    def counter(self, name: str, unit: str) -> int:
        """A track of values."""
        key = ("counter", name)
        if key not in self._tracks:
            identity = self._described(key, name, None)
            self._trace.packet[-1].track_descriptor.counter.unit_name = unit
            return identity
        return self._tracks[key]

    def process(self, pid: int, name: str) -> int:
        """The track of a process."""
        identity = self._described(("process", pid), "", None)
        process = self._trace.packet[-1].track_descriptor.process
        process.pid, process.process_name = pid, name
        return identity

    def thread(self, process: int, pid: int, tid: int, name: str) -> int:
        """The track of a thread."""
        identity = self._described(("thread", pid, tid), "", process)
        thread = self._trace.packet[-1].track_descriptor.thread
        thread.pid, thread.tid, thread.thread_name = pid, tid, name
        return identity

    def slice(self, track: int, begun: float, ended: float, name: str, facts: dict[str, str] | None = None) -> None:
        """Something that lasts."""
        event = self.begin(track, begun, name)
        for key, value in (facts or {}).items():
            event.debug_annotations.add(name=key, string_value=value)
        self.end(track, max(begun, ended))

    def begin(self, track: int, at: float, name: str) -> Any:
        """Something begins; slices of one track nest."""
        event = self._event(track, at, trace.TrackEvent.TYPE_SLICE_BEGIN, name)
        return event

    def end(self, track: int, at: float) -> None:
        """The newest that is still going on ends."""
        self._event(track, at, trace.TrackEvent.TYPE_SLICE_END)

    def instant(self, track: int, at: float, name: str) -> None:
        """Something at a moment."""
        self._event(track, at, trace.TrackEvent.TYPE_INSTANT, name)

    def count(self, track: int, at: float, value: float) -> None:
        """The value of a counter from now on."""
        self._event(track, at, trace.TrackEvent.TYPE_COUNTER).double_counter_value = value

    def serialised(self) -> bytes:
        """The trace as a file has it."""
        return bytes(self._trace.SerializeToString())

    def _described(self, key: tuple[object, ...], name: str, parent: int | None) -> int:
        if key not in self._tracks:
            self._tracks[key] = len(self._tracks) + 1
            descriptor = self._packet().track_descriptor
            descriptor.uuid = self._tracks[key]
            if name:
                descriptor.name = name
            if parent is not None:
                descriptor.parent_uuid = parent
        return self._tracks[key]

    def _event(self, track: int, at: float, kind: int, name: str = "") -> Any:
        packet = self._packet()
        packet.timestamp = self._created + round(at * NANOSECONDS)
        event = packet.track_event
        event.type, event.track_uuid = kind, track
        if name:
            short = name[:LONGEST_NAME]
            if short not in self._names:
                self._names[short] = len(self._names) + 1
                packet.interned_data.event_names.add(iid=self._names[short], name=short)
            event.name_iid = self._names[short]
        return event

    def _packet(self) -> Any:
        packet = self._trace.packet.add()
        packet.trusted_packet_sequence_id = SEQUENCE
        packet.sequence_flags = trace.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        return packet
