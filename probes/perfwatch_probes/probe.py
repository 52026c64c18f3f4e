"""What every probe is: something that looks, never touches, and either sees or says why it cannot.

A probe returns readings or raises ``Unavailable``. Missing is not zero: there is no third way.
The watcher records, for every probe and every time, how long the look took and how it ended (``ProbeCall``).
``NAME`` is a probe's word in the recording, ``NEEDS`` the privilege or kernel feature that it takes, ``COST`` what one look
costs, measured.
"""


class Unavailable(Exception):
    """A witness that cannot be had now.

    Args:
        reason: what happened and why, one sentence ("ptrace of pid 41 denied: owned by uid 1000").
        advice: the exact command or setting that would make it available; empty when nothing would.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice
