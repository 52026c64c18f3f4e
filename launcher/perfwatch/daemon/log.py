"""The daemon's log: one line of text for each event, or one JSON object with fields to filter by."""

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import IO

from perfwatch.text import clean, json_text, say

SCHEMA = "perfwatch.log/1"


class Log:
    """Writes the events of a node.

    Args:
        stream: where the lines go.
        as_json: one JSON object per line.
        clock: seconds since the epoch.
    """

    def __init__(self, stream: IO[str], as_json: bool = False, clock: Callable[[], float] = time.time) -> None:
        self._stream, self._as_json, self._clock = stream, as_json, clock

    def __call__(self, text: str, event: str = "note", pid: int | None = None, line: str = "", **fields: object) -> None:
        """Write one event. A stream that is gone is no error.

        Args:
            text: the event in words.
            event: its kind: note, adopted, recording, suspicion, verdict, retraction, handed_over, restarted or ended.
            pid: the process at the top of the job; None if the event is about no job.
            line: what the text log has in place of the text, where that has more.
            fields: what JSON has beside; empty ones are left out.
        """
        if not self._as_json:
            say(self._stream, (line or text) if pid is None else f"pid {pid}: {line or text}")
            return
        moment = datetime.fromtimestamp(self._clock(), timezone.utc).isoformat(timespec="milliseconds")
        always = {"schema": SCHEMA, "time": moment.replace("+00:00", "Z"), "event": event, "message": clean(text)}
        known = {name: value for name, value in {"pid": pid, **fields}.items() if value not in (None, "")}
        try:
            self._stream.write(json_text(always | known) + "\n")
            self._stream.flush()
        except OSError:
            pass
