"""Lines of the kernel's log that decide a case, in the words of several kernels."""

import errno
import os
import socket
from pathlib import Path

import pytest

from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.kernel_log import KernelLogProbe, parse_record
from perfwatch_probes.probe import Unavailable

LINES = [
    ("oom_kill", 4321, "Out of memory: Killed process 4321 (python) total-vm:9kB, anon-rss:8kB, file-rss:0kB, UID:0"),
    ("oom_kill", 4321, "Memory cgroup out of memory: Killed process 4321 (pt_main thread) total-vm:9kB, anon-rss:8kB"),
    ("oom_kill", 4321, "Killed process 4321 (python), UID 1000, total-vm:9kB, anon-rss:8kB, file-rss:0kB"),
    ("hung_task", 77, "INFO: task python3:77 blocked for more than 120 seconds."),
    ("hung_task", 77, "INFO: task kworker/u8:2:77 blocked for more than 122 seconds."),
    ("segfault", 12, "python[12]: segfault at 0 ip 00007f sp 00007f error 4 in libtorch_cpu.so[7f+1]"),
    ("segfault", 12, "traps: python[12] general protection fault ip:7f sp:7f error:0 in libcuda.so"),
    ("segfault", 12, "traps: pt_main thread[12] trap invalid opcode ip:7f sp:7f error:0"),
    ("io_error", None, "blk_update_request: I/O error, dev sda, sector 123 op 0x0:(READ)"),
    ("io_error", None, "nvme nvme0: I/O 12 QID 3 timeout, aborting"),
    ("io_error", None, "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: reading directory lblock 0"),
    ("io_error", None, "nfs: server filer not responding, still trying"),
    ("xid", None, "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
    ("xid", 99, "NVRM: Xid (PCI:0000:65:00): 31, pid=99, name=python, Ch 00000008, MMU Fault"),
]
HARMLESS = [
    "Out of memory: Kill process 4321 (python) score 900 or sacrifice child",  # its child may be the victim
    "oom_reaper: reaped process 4321 (python), now anon-rss:0kB, file-rss:0kB",
    "INFO: task python:77 is blocked on a mutex likely owned by task python:78.",
    "EXT4-fs (vda): mounted filesystem r/w without journal.",
    "nvme nvme0: 8/0/0 default/read/poll queues",
]


def record(text: str, microseconds: int = 5_000_000) -> str:
    """A record as /dev/kmsg gives it, with a continuation line."""
    return f"6,339,{microseconds},-;{text}\n SUBSYSTEM=block\n"


@pytest.mark.parametrize(("kind", "pid", "text"), LINES)
def test_a_line_that_matters_has_its_kind_its_victim_and_its_age(kind: str, pid: int | None, text: str) -> None:
    """The age is from the kernel's clock."""
    message = parse_record(record(text), now_seconds=12.5)

    assert message is not None
    assert (message.kind, message.pid, message.text, message.logged_ago_seconds) == (kind, pid, text, 7.5)


@pytest.mark.parametrize("text", HARMLESS)
def test_other_lines_are_left_out(text: str) -> None:
    """Among them those that name a process which was not the victim."""
    assert parse_record(record(text), 12.5) is None


@pytest.mark.parametrize("text", ["", "no semicolon", "6,1;x", "6,1,then,-;Killed process 1 (x)"])
def test_what_is_not_a_record_is_left_out(text: str) -> None:
    """A torn record is not an error of ours."""
    assert parse_record(text, 1.0) is None


def test_each_record_is_told_once_and_old_ones_and_those_of_processes_that_are_gone_not_at_all(tmp_path: Path) -> None:
    """A datagram socket stands in for the device: like it, it gives one record per read and never blocks."""
    (tmp_path / "2/task/2").mkdir(parents=True)
    ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setblocking(False)
    probe = KernelLogProbe(lambda: 10_000.0, lambda *_: ours.fileno(), Filesystem(proc=tmp_path))
    kernel.send(record("Killed process 1 (old) total", 5_000_000).encode())
    kernel.send(record("Killed process 2 (new) total", 9_999_000_000).encode())
    kernel.send(record("Killed process 4 (of another job) total", 9_999_000_000).encode())
    kernel.send(record("NVRM: Xid (PCI:0000:1b:00): 79, pid=5, GPU has fallen off the bus.", 9_999_000_000).encode())

    assert [message.pid for message in probe.look()] == [2, 5]
    assert probe.look() == []
    kernel.send(record("Killed process 3 (x) total", 9_999_500_000).encode())
    assert [message.pid for message in probe.look()] == [3]
    ours.close()
    kernel.close()


@pytest.mark.parametrize(("number", "advice"), [(errno.EPERM, "dmesg_restrict"), (errno.ENOENT, "--device /dev/kmsg")])
def test_a_log_that_cannot_be_opened_says_what_would_help(number: int, advice: str) -> None:
    """Denied and absent (a container) have different fixes."""

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with pytest.raises(Unavailable) as caught:
        KernelLogProbe(opener=refuse).look()
    assert advice in caught.value.advice
