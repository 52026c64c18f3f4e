"""Every reading that a probe can make: the schema of the recording.

Frozen, typed, with units in the names. ``None`` always means "not known", never zero. Counters are cumulative, as the kernel
keeps them: differences are triage's business. Times called ``*_ago_seconds`` count back from the moment of the reading.
"""

import msgspec


class Reading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=True):
    """The common root; each subclass is one kind of line in ``readings.jsonl``."""


class Process(Reading, frozen=True, kw_only=True):
    """Who a process is (written on change). Identity is ``pid`` + ``start_ticks``: a pid alone can be reused.

    Source: /proc/PID/{stat,status,cmdline,exe,environ}. ``command`` is redacted; ``environment`` holds allow-listed names only.
    """

    pid: int
    start_ticks: int  # stat field 22, clock ticks after boot
    parent_pid: int
    name: str  # comm, as shown by ps
    command: tuple[str, ...]
    executable: str | None = None
    python: bool = False  # the interpreter is (or is linked with) CPython
    torch_loaded: bool | None = None  # libtorch is mapped (/proc/PID/maps)
    uid: int | None = None
    age_seconds: float | None = None  # since it started
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    namespace_pid: int | None = None  # innermost NSpid where it differs from pid
    environment: dict[str, str] = {}


class ProcessEnded(Reading, frozen=True, kw_only=True):
    """A process of the job that is no more, or a zombie. ``exit_code`` from the launcher (own child) or stat field 52 (zombie)."""

    pid: int
    start_ticks: int
    zombie: bool = False  # nobody has reaped it yet
    exit_code: int | None = None  # >= 0: exited; see ``signal``
    signal: int | None = None  # the signal that ended it
    name: str = ""
    parent_pid: int | None = None


class ProcessUsage(Reading, frozen=True, kw_only=True):
    """What a whole process has used so far (one aggregate per second). Source: /proc/PID/{stat,status,io,smaps_rollup not used}."""

    pid: int
    state: str  # state of the main thread: R S D T t Z I
    threads: int
    runnable_threads: int | None = None  # threads in R at this instant (swept processes only)
    cpu_seconds: float  # utime + stime
    children_cpu_seconds: float | None = None  # of reaped children
    major_faults: int
    minor_faults: int
    resident_bytes: int
    swapped_bytes: int | None = None
    shared_bytes: int | None = None
    read_chars: int | None = None  # rchar: bytes through read(), not recv()
    written_chars: int | None = None
    read_bytes: int | None = None  # from the block layer
    written_bytes: int | None = None
    read_calls: int | None = None
    write_calls: int | None = None
    tracer_pid: int = 0
    open_files: int | None = None


class PolledFile(msgspec.Struct, frozen=True):
    """One descriptor in a poll/select set; ``events`` is poll(2)'s mask (1 = in, 4 = out)."""

    fd: int
    events: int


class Wait(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The blocked system call of a thread, decoded. Source: /proc/PID/task/TID/syscall and /proc/PID/mem (nothing is stopped).

    ``remaining_seconds`` is None when unknown; ``forever`` is True when the call has no timeout.
    """

    call: str  # "futex", "clock_nanosleep", "read", "poll", ...
    number: int
    kind: str  # sleep futex poll read write recv send accept connect open stat sync lock child ioctl page_fault other
    fd: int | None = None
    path: str | None = None
    polled: tuple[PolledFile, ...] = ()
    remaining_seconds: float | None = None
    forever: bool = False
    child_pid: int | None = None  # wait4/waitid: the awaited pid (0 or negative: any)
    address: int | None = None  # futex word: equal addresses in one process are one lock
    shared: bool = False  # futex: between processes (multiprocessing's locks), not only between threads


class Thread(Reading, frozen=True, kw_only=True):
    """One thread, written on change. Source: /proc/PID/task/TID/{stat,status,schedstat,sched,wchan,syscall,io}."""

    pid: int
    tid: int
    name: str
    state: str  # R running, S sleeping, D uninterruptible, T stopped, t traced, Z zombie
    cpu_seconds: float
    run_seconds: float | None = None  # schedstat field 1
    run_delay_seconds: float | None = None  # schedstat field 2: runnable but not running
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    ran_ago_seconds: float | None = None  # since it last ran (se.exec_start against our own clock)
    wchan: str | None = None
    wait: Wait | None = None
    read_chars: int | None = None
    written_chars: int | None = None
    read_calls: int | None = None
    write_calls: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    block_delay_seconds: float | None = None  # delayacct_blkio


class Socket(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A connection as the kernel sees it. Source: /proc/net/{tcp,tcp6,unix,udp} of the process' namespace, and sock_diag."""

    family: str  # tcp, tcp6, unix, udp, netlink, ...
    state: str  # ESTABLISHED, LISTEN, SYN_SENT, ...
    local: str = ""
    peer: str = ""  # address:port, or the path of a unix socket
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
    kind: str  # pipe fifo socket file directory tty eventfd epoll other
    target: str  # text of the link: pipe:[123], /data/x.bin
    access: str = ""  # r w rw
    inode: int | None = None
    mount: str | None = None  # mount point
    filesystem: str | None = None  # ext4 nfs4 fuse.s3fs overlay tmpfs ...
    device: str | None = None  # mount source or major:minor
    position_bytes: int | None = None
    readers: tuple[int, ...] = ()  # processes that hold the read end of this pipe (this one included)
    writers: tuple[int, ...] = ()
    pipe_bytes: int | None = None  # bytes waiting in the pipe, where known
    socket: Socket | None = None
    watched: tuple[int, ...] = ()  # epoll: the descriptors that it watches
    lock_holders: tuple[int, ...] = ()  # processes that hold a flock/fcntl lock on this file (/proc/locks)


class FileGrowth(Reading, frozen=True, kw_only=True):
    """A regular file that a process of the job holds open for writing (log, checkpoint). stat in a killable child."""

    pid: int
    fd: int
    path: str
    size_bytes: int
    modified_ago_seconds: float


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One Python (or native) frame."""

    function: str
    file: str  # full path as the interpreter knows it
    line: int


class Stack(Reading, frozen=True, kw_only=True):
    """What one thread was executing. Source: ``py-spy dump`` or ``py-spy record``, both ``--nonblocking``.

    frames: innermost first. samples: how many successive samples showed exactly this stack (1 for a dump), over
    ``span_seconds`` that END at the time of the record. A nonblocking stack may be torn: never conclude from one.
    """

    pid: int
    tid: int
    thread: str = ""
    frames: tuple[Frame, ...] = ()
    owns_gil: bool | None = None  # None: the source does not tell
    samples: int = 1
    span_seconds: float = 0.0
    native: bool = False
    texts: tuple[
        str, ...
    ] = ()  # string values found in locals of the innermost user frame, redacted (asked for on one suspect only)


class StackFailure(Reading, frozen=True, kw_only=True):
    """A dump that failed because the stack moved under it ("Failed to copy PyCodeObject"): evidence of motion, not a gap."""

    pid: int
    message: str


class SourceLine(Reading, frozen=True, kw_only=True):
    """Text of a hot or blocked user frame, so that a rule can see which builtin it calls. Read in a killable child.

    calls: dotted names called on that line; loop_calls: names called anywhere in the innermost enclosing loop
    and in the functions of the same file that it calls (empty: no loop).
    """

    file: str
    line: int
    text: str
    calls: tuple[str, ...] = ()
    loop_calls: tuple[str, ...] = ()
    loops: tuple[str, ...] = ()  # kinds of the enclosing loops in its function, innermost first: "for", "while"
    loop_is_endless: bool = (
        False  # ``while True`` / ``while 1`` without break, or the line is in a ``while`` loop that only polls
    )


class NativeProfile(Reading, frozen=True, kw_only=True):
    """Where a running thread spends its time in native code. Source: ``perf record`` for about 1 s, where permitted.

    shares: symbol -> share of samples (0..1), the largest twenty.
    """

    pid: int
    tid: int
    shares: dict[str, float]
    samples: int


class Steps(Reading, frozen=True, kw_only=True):
    """Optimizer steps counted by the agent inside the rank. Source: the agent's shared page.

    interval_seconds: the newest step intervals since the last reading (at most 64); longest_seconds: the longest since then.
    """

    pid: int
    tid: int  # the thread that runs the steps
    count: int
    step_ago_seconds: float | None = None  # None before the first step
    interval_seconds: tuple[float, ...] = ()
    longest_seconds: float | None = None


class Traceback(Reading, frozen=True, kw_only=True):
    """The last words of a rank, kept by the agent's excepthook. ``text`` is redacted and cut to 16 KiB."""

    pid: int
    exception: str
    text: str


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """PSI totals, cumulative microseconds. Source: /proc/pressure/* or the cgroup's *.pressure."""

    some_microseconds: int
    full_microseconds: int


class Host(Reading, frozen=True, kw_only=True):
    """The machine. Sources: psutil (CPU times, memory, swap), /proc/pressure, /proc/meminfo, statvfs of /dev/shm. Cumulative counters."""

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
    oom_kills: int | None = None
    frozen: bool | None = None
    pressure: dict[str, Pressure] = {}


class Affinity(Reading, frozen=True, kw_only=True):
    """CPUs on which a process may run (Cpus_allowed_list). Source: sched_getaffinity."""

    pid: int
    cpus: tuple[int, ...]


class Disk(Reading, frozen=True, kw_only=True):
    """One block device. Source: psutil.disk_io_counters, /proc/diskstats (in flight, busy time)."""

    device: str
    reads_completed: int
    writes_completed: int
    read_bytes: int
    written_bytes: int
    busy_seconds: float | None = None
    in_flight: int | None = None


class MountActivity(Reading, frozen=True, kw_only=True):
    """Requests of one network mount (NFS). Source: /proc/PID/mountstats."""

    mount: str
    filesystem: str
    requests: int
    completed: int
    read_bytes: int
    written_bytes: int


class Network(Reading, frozen=True, kw_only=True):
    """One interface or RDMA port. Sources: psutil.net_io_counters; /sys/class/infiniband/*/ports/*/counters (RDMA bypasses netdev)."""

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
    outcome: str  # ok, unavailable, failed
    reason: str = ""
    advice: str = ""


class Coverage(Reading, frozen=True, kw_only=True):
    """What the job says of itself against what we see."""

    ranks_seen: tuple[int, ...]
    world_size: int | None
    hosts_missing: tuple[str, ...] = ()


ANY_READING = (
    Process
    | ProcessEnded
    | ProcessUsage
    | Thread
    | Descriptor
    | FileGrowth
    | Stack
    | StackFailure
    | SourceLine
    | NativeProfile
    | Steps
    | Traceback
    | Host
    | Cgroup
    | Affinity
    | Disk
    | MountActivity
    | Network
    | KernelMessage
    | ProbeCall
    | Coverage
)
