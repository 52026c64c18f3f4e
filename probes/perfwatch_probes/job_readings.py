"""Readings about the job itself: its processes, threads, stacks and steps. ``perfwatch_probes.readings`` says what all share."""

import msgspec

from perfwatch_probes.reading import Reading


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


class Software(Reading, frozen=True, kw_only=True):
    """What a process runs with, once per job. Source: /proc/PID/maps names the libraries, torch/version.py and the names of
    the installed packages beside it the versions; nothing of it is imported or run.
    """

    pid: int
    torch: str | None = None  # 2.13.0+cu130
    cuda: str | None = None  # that torch was built for
    nccl: str | None = None
    python: str | None = None  # 3.11


class ProcessEnded(Reading, frozen=True, kw_only=True):
    """A process of the job that is no more, or a zombie.

    ``exit_code`` and ``signal`` from the launcher (own child), stat field 52 (zombie) or a pidfd (reaped; Linux 6.15).
    """

    pid: int
    start_ticks: int
    zombie: bool = False  # not yet reaped
    exit_code: int | None = None  # >= 0: exited; see ``signal``
    signal: int | None = None  # the signal that ended it
    name: str = ""
    parent_pid: int | None = None


class ProcessUsage(Reading, frozen=True, kw_only=True):
    """What a whole process has used so far (one aggregate per second). Source: /proc/PID/{stat,status,io,smaps_rollup not used}."""

    pid: int
    state: str  # state of the main thread: R S D T t Z I
    threads: int
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
    signals_caught: int | None = None  # SigCgt: bit n - 1 for signal n


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
    writes: bool = False  # open: for writing alone, which a FIFO without a reader does not let through
    shared: bool = False  # futex: between processes (multiprocessing's locks), not only between threads
    joined_tid: int | None = None  # futex: the thread of its own process whose end is waited for (pthread_join)
    # futex: the address of the word that it sleeps on, argument 0 of the call. Threads of one process that block on one
    # ``threading.Lock`` have the same one; since CPython 3.13 each sleeps on a word of its own.
    futex_address: int | None = None
    # futex between processes, where the word lies in a shared mapping: the mapped file and the place of the word in it, by
    # /proc/PID/maps. All processes of one machine that wait for one ``multiprocessing`` lock have the same three.
    futex_device: str | None = None  # major:minor, decimal
    futex_inode: int | None = None
    futex_offset_bytes: int | None = None
    futex_unlinked: bool = False  # that file has no name any more: only forks of the process that mapped it have it


class Thread(Reading, frozen=True, kw_only=True):
    """One thread, written on change. Source: /proc/PID/task/TID/{stat,status,schedstat,sched,wchan,syscall,io}."""

    pid: int
    tid: int
    name: str
    start_ticks: int | None = None  # stat field 22, clock ticks after boot, as for a process
    state: str  # R running, S sleeping, D uninterruptible, T stopped, t traced, Z zombie; X: looked for in vain, it has ended
    cpu_seconds: float
    system_seconds: float | None = None  # the part of it that was spent in the kernel (stime)
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


class Frame(msgspec.Struct, frozen=True, array_like=True, cache_hash=True):
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
    # String values found in locals of the innermost user frame, redacted (asked for on one suspect only), and the locals' names.
    texts: tuple[str, ...] = ()
    text_names: tuple[str, ...] = ()


class StackFailure(Reading, frozen=True, kw_only=True):
    """A dump that failed because the stack moved under it ("Failed to copy PyCodeObject"): why there is no stack of that moment."""

    pid: int
    message: str


APPEARS, GOES = "appears", "goes"  # a file that a loop tests for, until the loop ends
FLAG, COUNT, FINITE, VALUE = "flag", "count", "finite", "value"  # what a loop tests before a call
PERTURBED, GATHERED = (
    "perturbed",
    "gathered",
)  # what a loop does: it tries parameters out, or only adds up their gradients
DROPPED, FILLED = "dropped", "filled"  # what a statement gets: it is not used, or it is written to and handed on
# Names of calls that look at a file without reading it: a loop that makes them polls, and names what it polls for.
FILE_TESTS = frozenset(
    "exists isfile isdir is_file is_dir stat lstat access listdir glob iglob scandir getsize getmtime".split()
)


# Methods that let a thread go on which waits at the same object (CPython: queue, threading).
GIVING = frozenset("put put_nowait get get_nowait task_done set notify notify_all release".split())


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
    gives: tuple[str, ...] = ()  # what its function calls anywhere that lets others go on (``GIVING``)
    calls_unnamed: bool = False  # that loop calls what has no name as well: an element of a table, what a call returns
    loop_lines: tuple[int, int] | None = None  # the first and the last of that loop
    # Kinds of the enclosing loops in its function, innermost first: "for", which a ``while`` that counts is, too, or "while", which a
    # ``for`` that never ends is, too.
    loops: tuple[str, ...] = ()
    hands_out: bool = False  # one of these loops yields
    endless: bool = False  # nothing in the text of one of these loops leaves it: its function never returns
    nears_its_end: bool = (
        False  # a turn of the innermost one, a ``while``, that comes to this line takes on what is tested
    )
    fills: bool = False  # the innermost one, a ``while``, calls a method of the very thing that it tests
    only_tests: bool = False  # the innermost one, a ``while``, changes nothing: only others can end it
    stores: bool = False  # it assigns to what other threads may look at, or prints into a file
    # Calls of the ``with`` statements around it in its function: ``profile(activities, record_shapes)``.
    within: tuple[str, ...] = ()
    retried_calls: tuple[str, ...] = ()  # what that loop tries, where this line is what it does when the try has failed
    asked_calls: tuple[str, ...] = ()  # what that loop asks, where this line only waits because of the answer
    loop_files: tuple[str, ...] = ()  # literal names of files that the loop tests (``FILE_TESTS``)
    tested_names: tuple[str, ...] = ()  # variables that these tests are given as they are
    awaits: str = ""  # whether that loop waits until such a file ``APPEARS`` or ``GOES``; empty: not known
    # What is tested (``FLAG`` ...) between it and the backward pass of the innermost loop, and its step.
    passes_if: tuple[str, ...] = ()
    steps_if: tuple[str, ...] = ()
    steps_each_turn: bool = False  # no turn of the innermost loop comes to this line without a backward pass
    result: str = ""  # what becomes in that loop of what the innermost statement on the line gets, where it is not used
    parameters: str = (
        ""  # what that loop, and the functions of the file that it calls, do with a model's (``PERTURBED`` ...)
    )
    traces: bool = False  # its function is one for ``sys.settrace``: it is given a frame, an event and a value, and looks at the frame


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
    modes: what was on in torch after the newest step, of ``anomaly_detection`` and ``cudnn_benchmark``; None: unknown.
    steps_each_turn: where several optimizers take turns, so many steps are made for one of the optimizer that steps most often;
    None: too many take turns for that to be seen.
    """

    pid: int
    tid: int  # the thread that runs the steps
    count: int
    step_ago_seconds: float | None = None  # None before the first step
    interval_seconds: tuple[float, ...] = ()
    longest_seconds: float | None = None
    modes: tuple[str, ...] | None = None
    steps_each_turn: float | None = 1.0


class Traceback(Reading, frozen=True, kw_only=True):
    """The last words of a rank, kept by the agent's excepthook. ``text`` is redacted and cut to 16 KiB."""

    pid: int
    exception: str
    text: str
    ago_seconds: float | None = None  # since they were written (st_mtime); ranks of one host are found in one look


class ThreadError(Reading, frozen=True, kw_only=True):
    """The error with which one thread ended while its process went on, kept by the agent. ``text`` as of ``Traceback``."""

    pid: int
    tid: int
    exception: str
    text: str


class Affinity(Reading, frozen=True, kw_only=True):
    """CPUs on which a process may run (Cpus_allowed_list). Source: sched_getaffinity.

    ``busy_seconds``: what all processes have computed on these CPUs so far, steal and waiting for disks left out; None where they are
    all CPUs of the machine (``Host`` has it). Source: /proc/stat.
    """

    pid: int
    cpus: tuple[int, ...]
    busy_seconds: float | None = None
