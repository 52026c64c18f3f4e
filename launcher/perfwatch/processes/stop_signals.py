"""Ctrl-C and SIGTERM, handled between two samples, so that no sample is cut in half."""

import os
import signal
from types import FrameType, TracebackType

from perfwatch_probes.readable import readable

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Leaving:
    """Within ``with``: the first signal asks us to leave and say what is known; a second one ends us at once.

    A signal that our parent has set to be ignored (nohup, a background job) stays ignored.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def __enter__(self) -> "Leaving":
        for number, before in self._before.items():
            if before is not signal.SIG_IGN:
                signal.signal(number, self._hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        os.close(self._woken)
        os.close(self._wake)

    def wait(self, seconds: float, *sooner: int) -> bool:
        """Sleep for so long, or until asked to leave, or until a file of ``sooner`` is readable; whether we are to leave."""
        if not self.asked:
            readable(seconds, self._woken, *sooner)
        return self.asked

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        os.write(self._wake, b"x")
