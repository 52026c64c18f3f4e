"""Lines of the kernel's log that decide a case: OOM kills, hung tasks, segfaults, I/O errors, GPU errors (Xid).

/dev/kmsg is read without blocking, one record per read, from where the last look ended. Its times are microseconds of
the kernel's own clock, which runs with CLOCK_MONOTONIC. PIDs are those of the host: in a container they are not ours.
Format: Documentation/ABI/testing/dev-kmsg; the texts were collected from kernels 3.10 (RHEL 7) to 6.18.
"""

import os
import re
import time
from collections.abc import Callable, Iterator

from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import KernelMessage

FIRST_LOOK_SECONDS = 3600.0  # an OOM kill of an hour ago can still be why a rank is missing
MOST_RECORDS = 20_000  # a log buffer of 1 MiB holds about 10,000
LONGEST_TEXT = 400
_RECORD_BYTES = 8192  # larger than any record (kernel: PRINTK_MESSAGE_MAX)

# kind, pattern; the group "pid", where there is one, is the victim.
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    # One line per victim on every kernel ("Kill process N ... or sacrifice child" before it may name another one).
    ("oom_kill", re.compile(r"Killed process (?P<pid>\d+)[ ,]")),
    ("hung_task", re.compile(r"task .+:(?P<pid>\d+) blocked for more than \d+ seconds")),
    ("xid", re.compile(r"NVRM: Xid \([^)]*\): \d+(?:, pid='?(?P<pid>\d+)?)?")),
    ("segfault", re.compile(r"\[(?P<pid>\d+)\]?:? (?:segfault at|general protection|trap |unhandled exception)")),
    (
        "io_error",
        re.compile(
            r"I/O error|EXT4-fs error|XFS .*(?:error|Shutting down)|BTRFS error|critical (?:medium|target) error"
            r"|nvme\d* ?nvme\d+: I/O \d+ .*timeout|nvme nvme\d+: (?:I/O|controller is down)"
            r"|nfs: server .* not responding|(?:CIFS|smb).*has not responded|ceph: .*(?:hung|lost)|LustreError",
            re.I,
        ),
    ),
)  # fmt: skip


class KernelLogProbe:
    """Reads new records of /dev/kmsg.

    Args:
        clock: CLOCK_MONOTONIC, seconds.
        opener: opens the log; a stand-in must give one record per read and never block.
        filesystem: its /proc still has the zombies of a job.
    """

    NAME = "kernel_log"
    NEEDS = "read access to /dev/kmsg (root or CAP_SYSLOG, or kernel.dmesg_restrict 0)"
    COST = "1 us per new record; the first look reads the whole buffer (5 ms per 5,000 lines)"

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        opener: Callable[[str, int], int] = os.open,
        filesystem: Filesystem | None = None,
    ) -> None:
        self._clock, self._opener, self._filesystem = clock, opener, filesystem or Filesystem()
        self._descriptor: int | None = None

    def look(self) -> list[KernelMessage]:
        """Messages since the last look; the first time, those of the last hour. Raises Unavailable when denied.

        What was said before of a process that is gone altogether is of another job, and may be one of hundreds on this machine.
        """
        first = self._descriptor is None
        if self._descriptor is None:
            self._descriptor = self._open()
        read = (parse_record(record, self._clock()) for record in self._records(self._descriptor))
        return [one for one in read if one is not None and not (first and self._is_over(one))]

    def _is_over(self, message: KernelMessage) -> bool:
        if message.logged_ago_seconds > FIRST_LOOK_SECONDS:
            return True
        pid = message.pid
        return message.kind != "xid" and pid is not None and not self._filesystem.has_task(pid, pid)

    def close(self) -> None:
        """Let go of the device."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        try:
            return self._opener("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError as error:
            raise Unavailable(
                f"the kernel log cannot be read: {error.strerror}: OOM kills and I/O errors will not be seen in it",
                "run perfwatch as root (or with CAP_SYSLOG), or: sudo sysctl kernel.dmesg_restrict=0",
            ) from error
        except OSError as error:
            raise Unavailable(
                f"there is no kernel log here: {error.strerror}", "docker run --device /dev/kmsg --cap-add SYSLOG"
            ) from error

    def _records(self, descriptor: int) -> Iterator[str]:
        for _ in range(MOST_RECORDS):
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return  # no more
            except BrokenPipeError:
                continue  # records were overwritten before we read them; the next read gives the oldest that is left
            except OSError as error:
                self.close()
                raise Unavailable(
                    f"the kernel log cannot be read: {error.strerror}", "run perfwatch as root or with CAP_SYSLOG"
                ) from error
            if not record:
                return
            yield record.decode(errors="replace")


def parse_record(record: str, now_seconds: float) -> KernelMessage | None:
    """A record of /dev/kmsg (``priority,sequence,microseconds,flags;text``) that matters, else None.

    Args:
        record: as read, with its continuation lines.
        now_seconds: CLOCK_MONOTONIC of the read.
    """
    head, separator, text = record.partition(";")
    fields = head.split(",")
    if not separator or len(fields) < 3 or not fields[2].isdigit():
        return None
    text = text.partition("\n")[0].strip()
    for kind, pattern in _KINDS:
        match = pattern.search(text)
        if match:
            pid = match.groupdict().get("pid")
            return KernelMessage(
                kind=kind,
                text=text[:LONGEST_TEXT],
                logged_ago_seconds=max(0.0, now_seconds - int(fields[2]) / 1e6),
                pid=int(pid) if pid else None,
            )
    return None
