"""Readings about what surrounds the job: open files, sockets, the machine, its limits, and the probes themselves."""

import msgspec

from perfwatch_probes.reading import Reading


class Socket(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A connection as the kernel sees it. Source: /proc/net/{tcp,tcp6,unix,udp} of the process' namespace, and sock_diag."""

    family: str  # tcp, tcp6, unix, udp, netlink, ...
    state: str  # ESTABLISHED, LISTEN, SYN_SENT, ...
    local: str = ""
    peer: str = ""  # address:port, or the path of a unix socket
    peer_inode: int | None = None  # of a unix socket, which has no address by which the other end could be told
    peer_pids: tuple[int, ...] = ()  # processes of this machine that hold the other end
    received_ago_seconds: float | None = None  # tcpi_last_data_recv
    sent_ago_seconds: float | None = None  # tcpi_last_data_sent
    received_bytes: int | None = None
    sent_bytes: int | None = None  # tcpi_bytes_acked
    receive_queue_bytes: int | None = None
    send_queue_bytes: int | None = None
    retransmits: int | None = None


class Descriptor(Reading, frozen=True, kw_only=True):
    """An open file behind a blocked call. Source: /proc/PID/{fd,fdinfo,mountinfo}; the file itself is never touched."""

    pid: int
    fd: int
    kind: str  # pipe fifo socket file directory tty eventfd epoll pidfd other; missing: a path that leads to nothing
    target: str  # text of the link: pipe:[123], /data/x.bin
    access: str = ""  # r w rw
    inode: int | None = None
    mount: str | None = None  # mount point
    filesystem: str | None = None  # ext4 nfs4 fuse.s3fs overlay tmpfs ...
    device: str | None = None  # mount source or major:minor
    position_bytes: int | None = None
    readers: tuple[int, ...] = ()  # processes that hold the read end of this pipe, or this eventfd (this one included)
    writers: tuple[int, ...] = ()
    socket: Socket | None = None
    watched: tuple[int, ...] = ()  # epoll: the descriptors that it watches
    watched_pid: int | None = None  # pidfd: the process that it stands for; -1 where that is gone
    controlling: bool | None = None  # tty: the controlling terminal of the process (stat field 7); None: not known
    other_side: tuple[int, ...] = ()  # tty: the other processes that hold its other side (fdinfo of /dev/ptmx)
    lock_holders: tuple[int, ...] = ()  # processes that hold a flock/fcntl lock on this file (/proc/locks)
    holders_run: tuple[str, ...] = ()  # the programs of the first of these, in the same order
    holders_started: tuple[int, ...] = ()  # what these have started, and what that has
    changed_ago_seconds: float | None = (
        None  # a path that is waited for and is there: since its newest change of any kind
    )


class Traffic(Reading, frozen=True, kw_only=True):
    """What the TCP connections of a process have carried since each was made. Source: sock_diag (tcp_info), /proc/PID/fd."""

    pid: int
    connections: int  # as many as before: the sums are of the same ones
    received_bytes: int  # tcpi_bytes_received
    sent_bytes: int  # tcpi_bytes_acked: what the other end has confirmed
    queued_bytes: int  # written, and not confirmed
    retransmits: int  # tcpi_total_retrans


class FileGrowth(Reading, frozen=True, kw_only=True):
    """A regular file that a process of the job holds open for writing (log, checkpoint). stat in a killable child.

    alike_lines: of a file that was not written for a while, about how many of its lines are like its last ones, numbers apart.
    """

    pid: int
    fd: int
    path: str
    size_bytes: int
    modified_ago_seconds: float
    alike_lines: int | None = None


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """PSI totals, cumulative microseconds. Source: /proc/pressure/* or the cgroup's *.pressure."""

    some_microseconds: int
    full_microseconds: int


class Host(Reading, frozen=True, kw_only=True):
    """The machine. Sources: /proc/stat, meminfo, vmstat and pressure; statvfs of /dev/shm. Cumulative counters."""

    cpus_online: int
    user_seconds: float
    system_seconds: float
    idle_seconds: float
    iowait_seconds: float
    steal_seconds: float
    running_threads: int | None = None  # procs_running
    blocked_threads: int | None = None
    load_1min: float | None = None
    memory_total_bytes: int
    memory_available_bytes: int
    swap_used_bytes: int = 0
    swapped_in_bytes: int = 0
    swapped_out_bytes: int = 0
    dirty_bytes: int | None = None
    writeback_bytes: int | None = None
    shm_total_bytes: int | None = None
    shm_used_bytes: int | None = None
    pressure: dict[str, Pressure] = {}  # "cpu", "memory", "io"


class Cgroup(Reading, frozen=True, kw_only=True):
    """Limits and events of the job's control group, v1 or v2. ``None`` where the controller is not mounted."""

    path: str
    version: int
    cpus_allowed: int | None = None  # sched affinity of the ranks
    quota_cpus: float | None = None  # None: no quota
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_seconds: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    memory_high_events: int | None = None
    memory_max_events: int | None = None  # v1: failcnt
    # Pages that were read back soon after they had been taken away; the page cache fills every limit, and that alone is no shortage.
    refaulted_pages: int | None = None
    oom_kills: int | None = None
    frozen: bool | None = None
    pressure: dict[str, Pressure] = {}


class Disk(Reading, frozen=True, kw_only=True):
    """One block device. Source: /proc/diskstats."""

    device: str
    reads_completed: int
    writes_completed: int
    read_bytes: int
    written_bytes: int
    busy_seconds: float | None = None
    in_flight: int | None = None


class Network(Reading, frozen=True, kw_only=True):
    """One interface or RDMA port. Sources: /proc/net/dev; /sys/class/infiniband/*/ports/*/counters (RDMA bypasses netdev)."""

    interface: str
    kind: str  # netdev, rdma
    received_bytes: int
    sent_bytes: int
    errors: int = 0
    retransmits: int | None = None


class KernelMessage(Reading, frozen=True, kw_only=True):
    """One kernel log line that matters (OOM kill, hung task, segfault, I/O error, Xid). Source: /dev/kmsg where readable."""

    kind: str  # oom_kill hung_task segfault io_error xid
    text: str
    logged_ago_seconds: float
    pid: int | None = None


class ProbeCall(Reading, frozen=True, kw_only=True):
    """How one look of a probe went: the tool's own cost and its blind spots are data."""

    probe: str
    entity: str
    duration_seconds: float
    cpu_seconds: float | None = None
    outcome: str  # ok, unavailable, failed, absent (this machine has no such thing: it is not missing)
    reason: str = ""
    advice: str = ""
    target_paused_seconds: float = 0.0  # at most; no sample of a watch pauses a process, some captures do
