"""The time budget of a training thread: each sample counts once, in the first bin that holds it, so that the shares sum to one.

A sample is put into its bin in one place, here. Rules about time are rows over the bins (``slowness.Part``): how much of the budget,
how often it comes back, what else must hold. No second is claimed by two causes.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from perfwatch.triage.cards.gpu import regimes, unseen
from perfwatch.triage.case import Case
from perfwatch.triage.history import History, Seen, once
from perfwatch.triage.moving.motion import motion, was_at
from perfwatch.triage.moving.progress import trains
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.own_work import (
    awaits_a_program,
    calls_at,
    fetches,
    in_comprehension,
    own_work,
    rests,
    takes_a_lock,
    waits_for_ranks,
)
from perfwatch.triage.shares.profile import TRAINING_TAGS, Profile, in_own_sampler, lasting, profile
from perfwatch.triage.shares.thresholds import (
    ENOUGH_SAMPLES,
    LATELY_SECONDS,
    LOST_SHARE,
    MOSTLY,
    MUCH,
    NEARLY_ALL,
    NOTABLE,
    RUN_SECONDS,
    TWICE,
)
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.waits.node import between_tasks
from perfwatch.triage.words.code import calling_line, is_plain, line_of, names, retries, tries_for_a_lock
from perfwatch.triage.words.frames import (
    any_tag,
    inner_frames,
    inner_tags,
    is_user,
    of_tensors,
    of_torch,
    own_frames,
    short_name,
    tags,
    tags_of,
    user_frame,
    user_frames,
)
from perfwatch_probes.readings import Descriptor, Frame, NativeProfile, SourceLine, Stack, Steps, Thread


class Bin(Enum):
    """What a sample of the training thread is counted as."""

    UNPICKLING = "makes objects of what came through a queue"
    DATA = "waits for data"
    TUNING = "tries out kernels"
    COMPILING = "is in the compiler"
    STARTING = "imports, loads or initialises"
    WORKERS = "starts or stops loader workers"
    RANKS = "waits for other ranks"
    RETRYING = "sleeps between two tries"
    LOCK = "waits for a lock"
    SAVING = "saves"
    COPYING_MODEL = "copies the model"
    NETWORK = "waits for an answer over the network"
    GARBAGE = "collects garbage"
    DEBUGGING = "records for a debugging aid"
    EMPTYING = "empties the allocator's cache"
    DRAWING = "draws the next batch"
    LOADING = "makes a batch"
    COPYING = "copies to the GPU"
    GPU = "waits for the GPU"
    PICTURES = "draws pictures"
    ROWS = "writes rows of a database"
    OUTPUT = "prints or logs"
    HOOKS = "is in a hook that torch calls"
    NO_GRADIENTS = "runs the model without gradients"
    PYTHON = "is in Python of a forward pass"
    PROGRAM = "waits for a program that it started"
    SLEEPING = "sleeps"
    OTHER = "does other work"
    FORWARD = "is in a forward pass"
    BACKWARD = "is in a backward pass"
    OPTIMIZER = "is in the optimizer"
    REST = "does something else"
    IDLE = "waits for its next task, or for room in a queue"  # of a thread that makes batches


WORK = (Bin.LOCK, Bin.RETRYING, Bin.NETWORK, Bin.LOADING)  # of a thread that makes batches
WRITING = (Bin.PICTURES, Bin.ROWS, Bin.OUTPUT)


@dataclass(frozen=True)
class Budget:
    """The samples of one thread over a while, and the bin of each."""

    seen: Profile
    bins: tuple[Bin, ...]

    def of(self, *wanted: Bin) -> Profile:
        """The samples in these bins."""
        sights = zip(self.seen.sights, self.bins, strict=True)
        return Profile(tuple(one for one, found in sights if found in wanted), self.seen.seconds)

    @cached_property
    def _counts(self) -> Counter[Bin]:
        counted = Counter[Bin]()
        for one, found in zip(self.seen.sights, self.bins, strict=True):
            counted[found] += one.reading.samples
        return counted

    def share(self, *wanted: Bin) -> float:
        """Share of the samples in these bins; 0 without samples."""
        return sum(self._counts[one] for one in wanted) / max(1, self._counts.total())


@once
def budget(case: Case, rank: Member, seconds: float = LATELY_SECONDS) -> Budget:
    """Where the time of a rank's training thread goes."""
    return spent(case, case.profile(rank, seconds))


def spent(case: Case, seen: Profile) -> Budget:
    """The budget of samples of one thread."""
    return Budget(seen, tuple(bin_of(case, one.reading) for one in seen.sights))


def bin_of(case: Case, stack: Stack) -> Bin:
    """The bin of a sample."""
    known: dict[tuple[int, int, tuple[Frame, ...]], Bin] = case.history.once(("bins",), dict)
    key = stack.pid, stack.tid, stack.frames
    if key not in known:
        known[key] = next((one for one, holds in _BINS if holds(case, stack)), Bin.REST)
    return known[key]


def is_in(case: Case, *wanted: Bin) -> Callable[[Stack], bool]:
    """What tells whether a stack counts to one of these bins."""
    return lambda stack: bin_of(case, stack) in wanted


# Data


OWN_WAITS = ("mp_queue_get", "queue_get", "pool_wait", "futures_wait", "mp_receive")  # of a loop without a DataLoader


def awaits_data(stack: Stack) -> bool:
    """True if a training thread waits for its loader, or for a queue, a pool or a future of the program's own."""
    found = tags(stack)
    elsewhere = any_tag(found, "exit", "collective", "rendezvous", "save", "compile", "loader")
    return "loader_wait" in found or (any_tag(found, *OWN_WAITS) and not elsewhere)


OF_REQUESTS = frozenset({"http", "ssl", "selector", "retry"})  # where a line of the program asks by HTTP


# The compiler


def compiles(stack: Stack) -> bool:
    """In the compiler, what it imports for its work included; not in the import of it, which the first optimizer step of any program makes.

    Of the two, the outer one says what the thread is at.
    """
    for frame in reversed(own_frames(stack)):
        found = tags_of(frame.function, frame.file)
        if any_tag(found, "compile", "import"):
            return "compile" in found
    return False


# Saves


SAVING_NAME = re.compile(r"(^|_)(save|dump|ckpt|checkpoint|snapshot)")
SAVING_CLASS = re.compile(r"(Checkpoint|Ckpt|Snapshot|Saver)[^.]*\.")  # named from Python 3.11 on
SAVES = frozenset("save save_file savez dump".split())
SYNCS = frozenset("fsync fdatasync sync".split())
COPIES = frozenset("clone cpu deepcopy copy".split())  # of what state_dict() gives, which are references
# Per second: an audit trail or a log that is synced line by line mostly stays far below. Per call: what is buffered comes in 8 KiB and
# more, lines of a log that are flushed one by one do not.
MUCH_BYTES, LARGE_BYTES = 2**18, 2**12


def in_save(case: Case, stack: Stack) -> bool:
    """True if a stack is in a save, by what it calls or by the name of a function of the program's own."""
    if saves(case, stack):
        return True
    line = line_of(case.history, user_frame(stack))  # what is printed is for people, whatever the function is called
    text = syncs_text(case, stack) or (line is not None and not names(line.calls).isdisjoint(PRINTING))
    return is_named_so(stack) and not text and writes_much(case, stack) is not False


def is_named_so(stack: Stack) -> bool:
    """True if a function of the program's own says by its name that it saves: people pack or encrypt checkpoints themselves."""
    if any_tag(tags(stack), *TRAINING_TAGS, "fetch"):
        return False  # activation checkpointing; a function that trains and saves
    functions = [frame.function for frame in user_frames(stack)]
    return any(SAVING_NAME.search(short_name(one).lower()) or SAVING_CLASS.search(one) for one in functions)


def saves(case: Case, stack: Stack) -> bool:
    """True if a stack is in a save: library frames, or a line of the program that calls save or fsync."""
    if any_tag(found := tags(stack), "save", "restore"):
        return "restore" not in found
    line = calling_line(case.history, stack)
    if line is None or not (called := names(line.calls)) & (SAVES | SYNCS):
        return False
    # To pickle many objects takes arithmetic, too.
    plain = bool(called & SAVES) and not rather_computes(case, stack, line.calls)
    return plain or (writes_much(case, stack) is True and not syncs_text(case, stack))


def writes_much(case: Case, stack: Stack) -> bool | None:
    """True if a thread writes as much as a checkpoint has, and in pieces as large; None where it is not known."""
    written = case.history.growth(Thread, stack.pid, stack.tid, of=lambda thread: thread.written_chars)
    calls = case.history.growth(Thread, stack.pid, stack.tid, of=lambda thread: thread.write_calls)
    if written is None:
        return None
    lines = calls is not None and calls[0] and written[0] < LARGE_BYTES * calls[0]
    return not lines and written[0] >= MUCH_BYTES * written[1]


def _copies_the_model(case: Case, stack: Stack) -> bool:
    """True if a stack copies parameters, is at a line that does, or copies a state_dict."""
    if "model_copy" in tags(stack):
        return True
    if not stack.frames or any_tag(tags(stack), *TRAINING_TAGS):
        return False
    copying = profile(case.history, stack.pid, stack.tid).where(lambda one: "model_copy" in tags(one))
    called = calls_at(case.history, stack)
    return user_frame(stack) in copying.frames(user_frame) or ("state_dict" in called and bool(called & COPIES))


# Output


PRINTING = frozenset("print pprint writerow writerows to_csv".split())  # a table of text is for people, too
WRITES = frozenset({"write", "flush", "writelines"})
FILLS = SAVES | WRITES - {"flush"}
STREAMS = frozenset({"stdout", "stderr", "__stdout__", "__stderr__"})
LOGGING = frozenset("info debug warning error critical exception log".split())
EXECUTES = frozenset("execute executemany executescript".split())
CHANGES = re.compile(r"\b(insert|update|replace|delete)\b", re.IGNORECASE)  # statements of SQL
# What a line calls besides to say something: none of them takes a while.
OUTPUT_CALLS = frozenset(
    "print write writelines writerow writerows flush info debug warning error log save dump dumps format str repr int float round len"
    " join item tolist keys values items get time perf_counter monotonic strftime now state_dict cpu detach open Path basename dict"
    " list range min max sum zip enumerate isinstance getattr".split()
)


def _prints(case: Case, stack: Stack) -> bool:
    """True if a stack writes for people to read."""
    if any_tag(tags(stack), "log", "tracker") or syncs_text(case, stack):
        return True
    # print(model(x)) makes a pass; a hook that prints is within one
    if any_tag(inner_tags(stack), "save", "backward", "optimizer", "forward", "loader", "http", "compile"):
        return False
    line = line_of(case.history, user_frame(stack))
    return line is not None and any(map(_is_output, line.calls)) and not rather_computes(case, stack, line.calls)


def _is_output(call: str) -> bool:
    """True if a called name writes for people to read: ``print``, ``sys.stdout.write``, ``logger.info``."""
    owner, _, name = call.rpartition(".")
    if name in WRITES:
        return owner.rsplit(".", 1)[-1] in STREAMS
    return name in PRINTING or (name in LOGGING and "log" in owner.lower())


def syncs_text(case: Case, stack: Stack) -> bool:
    """True if a stack is in a line that forces to the disk a little, or what its loop prints."""
    line = calling_line(case.history, stack)
    if line is None or not names(line.calls) & SYNCS:
        return False
    called = names(line.loop_calls)
    return (not called.isdisjoint(PRINTING) and called.isdisjoint(FILLS)) or writes_much(case, stack) is False


def _stores_rows(case: Case, stack: Stack) -> bool:
    """True if a training thread is in a line that changes a database or commits to it: each transaction is forced to the disk."""
    line = calling_line(case.history, stack)
    if line is None or not was_at(case.history, stack.pid, stack.tid, "backward", "optimizer"):
        return False  # filling one before training is preparation
    if "commit" in names(line.calls):
        return True
    if names(line.calls) & EXECUTES:
        return bool(CHANGES.search(line.text))
    managed = {f"{one}.{call}" for one in line.within for call in EXECUTES}
    return line.text.lstrip().startswith("with ") and not managed.isdisjoint(line.loop_calls)


def rather_computes(case: Case, stack: Stack, calls: Collection[str]) -> bool:
    """True if a line calls something that may compute, and its thread runs nearly all of its time outside of the kernel.

    Where frames of another library than torch lie below the line, they do it: a table that is laid out to be printed.
    """
    if names(calls) <= OUTPUT_CALLS or not all(map(of_torch, inner_frames(stack))):
        return False
    ran = case.history.rate(Thread, stack.pid, stack.tid, of=lambda one: one.run_seconds, seconds=LATELY_SECONDS)
    system = case.history.rate(Thread, stack.pid, stack.tid, of=lambda one: one.system_seconds, seconds=LATELY_SECONDS)
    return ran is not None and system is not None and ran >= MOSTLY and system < NOTABLE * ran


# Python's collector, debugging aids, the allocator


COLLECTING = frozenset({"gc.collect", "collect"})


def _collects(case: Case, stack: Stack) -> bool:
    """True if a stack stands at a line that calls the collector."""
    line = calling_line(case.history, stack)
    return "gc" in tags(stack) or (line is not None and not COLLECTING.isdisjoint(line.calls))


def profiles(stack: Stack) -> bool:
    """True if a stack is in a profiler's own frames (not in a record_function that is part of every optimizer step)."""
    found = {short_name(one.function) for one in own_frames(stack) if "profiler" in tags_of(one.function, one.file)}
    return bool(found - {"__enter__", "__exit__", "__init__", "record_function"})


# The GPU


COPY_CALLS = frozenset({"to", "cuda", "copy_", "send_to_device", "move_data_to_device"})


def _awaits_gpu(case: Case, stack: Stack) -> bool:
    """True if the line waits for a GPU that this process uses, seen or not; writes that block are seen by themselves."""
    uses = bool(regimes(case.history, stack.pid)) or unseen(case.history, stack.pid)
    return uses and in_sync(case.history, stack)


# The model


GRADIENTS_OFF = frozenset({"no_grad", "inference_mode"})


def without_gradients_at(history: History, stack: Stack) -> Frame | None:
    """The function that switches gradients off around a forward pass, or the line in such a block; None where none does."""
    if "forward" not in tags(stack):
        return None
    pairs = zip(stack.frames, stack.frames[1:], strict=False)
    decorated = (frame for frame, caller in pairs if "no_grad" in tags_of(caller.function, caller.file))
    return next(decorated, None) or in_block_without(history, stack)


def in_block_without(history: History, stack: Stack) -> Frame | None:
    """The program's own frame that stands in a block of ``torch.no_grad`` or ``inference_mode``, by its text; else None."""
    for frame in user_frames(stack):
        line = line_of(history, frame)
        if line is not None and names(block.partition("(")[0] for block in line.within) & GRADIENTS_OFF:
            return frame
    return None


# Other work


RECEIVES = frozenset({"mp_queue_get", "mp_receive"})


def _unpickles(case: Case, stack: Stack) -> bool:
    """True if a thread that never sleeps is in ``get`` of a queue between processes."""
    if not tags(stack) or not tags(stack) <= RECEIVES:
        return False
    return (motion(case.history, stack.pid, stack.tid, LATELY_SECONDS).run_share or 0.0) >= NEARLY_ALL


def _tagged(*wanted: str, calls: frozenset[str] = frozenset()) -> Callable[[Case, Stack], bool]:
    """What tells whether a stack is at such work by its frames, or right at a line that makes one of these calls."""

    def holds(case: Case, stack: Stack) -> bool:
        line = calling_line(case.history, stack) if calls else None
        return any_tag(tags(stack), *wanted) or (line is not None and bool(names(line.calls) & calls))

    return holds


_BINS: tuple[tuple[Bin, Callable[[Case, Stack], bool]], ...] = (
    (Bin.TUNING, _tagged("autotune")),
    (Bin.UNPICKLING, _unpickles),
    (Bin.DATA, lambda _, stack: awaits_data(stack)),
    (Bin.COMPILING, lambda _, stack: compiles(stack)),
    (Bin.STARTING, _tagged("import", "load", "init")),
    (Bin.WORKERS, _tagged("loader_start", "loader_stop")),
    (Bin.RANKS, lambda case, stack: "collective" in tags(stack) or waits_for_ranks(case.history, case.job, stack)),
    (Bin.ROWS, _stores_rows),
    (Bin.RETRYING, lambda case, stack: retries(case.history, stack)),
    (Bin.LOCK, lambda case, stack: takes_a_lock(case.history, stack)),
    (Bin.SAVING, in_save),
    (Bin.COPYING_MODEL, _copies_the_model),
    (Bin.NETWORK, lambda _, stack: "http" in tags(stack) and tags(stack) <= OF_REQUESTS),
    (Bin.GARBAGE, _collects),
    (Bin.DEBUGGING, lambda _, stack: any_tag(tags(stack), "format_stack", "anomaly") or profiles(stack)),
    (Bin.EMPTYING, _tagged("empty_cache", calls=frozenset({"empty_cache"}))),
    (Bin.DRAWING, lambda _, stack: in_own_sampler(stack)),
    (Bin.LOADING, lambda _, stack: fetches(stack)),
    (Bin.COPYING, _tagged("device_copy", calls=COPY_CALLS)),
    (Bin.GPU, _awaits_gpu),
    (Bin.PICTURES, _tagged("picture")),
    (Bin.OUTPUT, _prints),
    (Bin.HOOKS, lambda _, stack: hook_of(stack) is not None),
    (Bin.NO_GRADIENTS, lambda case, stack: without_gradients_at(case.history, stack) is not None),
    # In the program's own code, or in a library that is not written in torch's operations.
    (Bin.PYTHON, lambda _, stack: any_tag(tags(stack), "forward") and not of_tensors(stack.frames[0])),
    (Bin.PROGRAM, lambda _, stack: awaits_a_program(stack)),
    (Bin.SLEEPING, lambda case, stack: own_work(stack) and rests(case.history, stack)),
    (Bin.OTHER, lambda _, stack: own_work(stack)),
    (Bin.FORWARD, _tagged("forward")),
    (Bin.BACKWARD, _tagged("backward")),
    (Bin.OPTIMIZER, _tagged("optimizer", "scaler", "clip")),
)


# The same of the threads that make its batches


@once
def worker_budget(case: Case, pid: int, tid: int) -> Budget:
    """Where the time of a loader's worker, or of another thread that makes batches, goes."""
    seen = lasting(case.history, pid, tid, LATELY_SECONDS)
    return Budget(seen, tuple(worker_bin(case, one.reading) for one in seen.sights))


def worker_bin(case: Case, stack: Stack) -> Bin:
    """The bin of a sample of such a thread."""
    if not _works_at_data(stack):
        return Bin.STARTING if _imports(stack) else Bin.IDLE
    if _takes_a_shared_lock(stack):
        return Bin.LOCK
    if retries(case.history, stack):
        return Bin.RETRYING
    return Bin.NETWORK if any_tag(tags(stack), "http", "ssl") else Bin.LOADING


def _works_at_data(stack: Stack) -> bool:
    """True if a worker works at data, rather than waits for its next task, for an item, or for room in a queue."""
    found, inner = tags(stack), inner_tags(stack)
    if "fetch" in found:
        return True
    if "feeder" in found:  # it pickles a batch, or has none to pickle
        return not any_tag(found, "thread_wait", "mp_send", "mp_lock")
    asks = any_tag(found, "mp_queue_get", "queue_get", "mp_lock")
    idle = asks and any_tag(found, "worker", "pool_worker", "futures_worker", "thread_wait")
    # A selector of a library's own; the program's may await its data.
    loops = "selector" in found and not any(map(is_user, stack.frames))
    # The function that a process was started with asks for the next item itself, rather than one that serves an item.
    pairs = zip(stack.frames, stack.frames[1:], strict=False)
    caller = next((outer.file for frame, outer in pairs if is_user(frame)), "")
    asked = "mp_receive" in inner and caller.endswith("multiprocessing/process.py")
    waits = any_tag(inner, "thread_wait", "between_calls") or between_tasks(stack) or asked
    return not (idle or waits or loops or _imports(stack))


def _imports(stack: Stack) -> bool:
    """True if a worker that was spawned a moment ago still imports the program."""
    found = tags(stack)
    return "import" in found and not any_tag(found, "worker", "pool_worker")


def _takes_a_shared_lock(stack: Stack) -> bool:
    """True if a worker waits for a lock between processes, other than that of a queue."""
    inner = inner_tags(stack)
    takes = bool(stack.frames) and stack.frames[0].function.rpartition(".")[2] in ("__enter__", "acquire")
    return takes and "mp_lock" in inner and not any_tag(inner, "mp_queue_get", "mp_queue_put")


# Since when it trains


def trained_for(case: Case, rank: Member) -> float:
    """Seconds since the first step or, without the agent's count, since training code was first seen; at most ten minutes.

    While a job starts, its card has nothing to do, and that is no fault.
    """
    for one in case.history.series(Steps, rank.pid):
        if one.reading.count > 0:
            return case.at - one.at + sum(one.reading.interval_seconds)
    for seen in case.profile(rank, RUN_SECONDS).sights:
        if trains(seen.reading):
            return case.at - seen.at + seen.reading.span_seconds
    return RUN_SECONDS


def since_first_step(case: Case, rank: Member, seen: Profile) -> Profile:
    """The samples of the window from the first step on: what was done before it, however long it took, is done once."""
    training = trained_for(case, rank)
    return seen if training >= LATELY_SECONDS else case.profile(rank, training)


# What native profiles add

PROFILE_SECONDS = 1.0
PROFILE_SAMPLES = 199  # of a thread that computes all that time; perf takes none while it sleeps or waits for a CPU
# Native symbols of tensor arithmetic: torch, its BLAS and its thread pools.
_TORCH_SYMBOLS = re.compile(
    r"at::|c10|torch|caffe2|mkl|gemm|gemv|blas|dnnl|fbgemm|xnn|cpuinfo|omp_|gomp|kmp|sleef|Sleef|vml|vectorized|autograd"
)


def native_profile(case: Case, rank: Member, seconds: float = RUN_SECONDS) -> NativeProfile | None:
    """The newest profile of the training thread over the last ``seconds``, none of it from before the first step."""
    seen = case.history.latest(NativeProfile, rank.pid, case.progress[rank.pid].thread)
    since = min(seconds, trained_for(case, rank) - PROFILE_SECONDS)
    return seen.reading if seen is not None and seen.at >= case.at - since else None


def native_python_share(case: Case, rank: Member) -> float | None:
    """Share of a native profile of the training thread that is not tensor arithmetic; None without a profile."""
    seen = native_profile(case, rank)
    shares = seen.shares.items() if seen is not None else ()
    return None if seen is None else sum(share for symbol, share in shares if not _TORCH_SYMBOLS.search(symbol))


# What torch calls back, and the GIL

OWN_SHARE = 0.35  # of samples outside of training code: loops that log, count and move batches stay below 0.2
# Dumps; with small operations of torch a thread is without the GIL in 80 to 100 % of them, so four with it for one without tell Python.
# Of work between steps it takes six: a dump may be torn, or a step be made.
OWNED_LOOKS, OWNED_PER_RELEASED = 4, 6


def gil_samples(seen: Profile, holds: Callable[[Stack], bool]) -> tuple[int, int]:
    """Dumps that found a thread at some work and with the GIL, and without it."""
    known = seen.where(lambda stack: stack.owns_gil is not None and holds(stack))
    owned = known.count(lambda stack: bool(stack.owns_gil))
    return owned, known.samples - owned


def keeps_gil(seen: Profile, holds: Callable[[Stack], bool]) -> bool:
    """True if nearly each dump of several that found a thread at some work saw it own the GIL: it is no arithmetic of torch."""
    owned, released = gil_samples(seen, holds)
    return owned >= OWNED_LOOKS and owned >= OWNED_PER_RELEASED * released


def mode_on(case: Case, rank: Member, mode: str) -> bool | None:
    """True if something was on in torch after the newest step, as the agent reports; None without an agent.

    What is switched on for a part of each step only, may be off by then.
    """
    seen = case.history.latest(Steps, rank.pid)
    return None if seen is None or seen.reading.modes is None else mode in seen.reading.modes


Callers = tuple[tuple[str, frozenset[str] | None, str | None], ...]
# Frames of torch that call what the program registered, and what else of the program they call: that is no hook.
_CALLERS: Callers = (
    ("torch/autograd/graph.py", frozenset({"_engine_run_backward"}), None),
    ("torch/autograd/__init__.py", frozenset({"backward", "grad"}), None),  # before torch 2.3
    ("torch/autograd/function.py", frozenset({"apply"}), None),
    ("torch/utils/hooks.py", None, None),
    ("torch/nn/modules/module.py", frozenset({"inner"}), "forward"),
    # Hooks, and the step of an optimizer of the program's own.
    ("torch/optim/optimizer.py", frozenset({"wrapper"}), None),
)
HOOK_CALLERS = _CALLERS[:2] + _CALLERS[3:5]  # a function with a backward of its own may be the model itself
_DECORATES = "torch/utils/_contextlib.py"  # torch.no_grad around a hook


@dataclass(frozen=True)
class CalledBack:
    """What a training thread does there in Python."""

    share: float  # of the samples
    frame: Frame  # the program's own, that torch called
    owned: int  # dumps that found the thread there and with the GIL
    released: int  # and without

    @property
    def is_python(self) -> bool:
        """True if it is a good part of the time, and nothing speaks against its being Python that computes there."""
        return self.share >= LOST_SHARE and self.owned >= OWNED_LOOKS * self.released


def called_back(stack: Stack) -> Frame | None:
    """The frame of the program that torch called back, where nothing of torch runs below it; else None."""
    return path[-1] if (path := callback_path(stack)) else None


def hook_of(stack: Stack) -> Frame | None:
    """The hook of the program's own that a stack is in, or below, whatever runs there; None where it is in none."""
    pairs = zip(stack.frames, stack.frames[1:], strict=False)
    return next((frame for frame, caller in pairs if is_user(frame) and calls_back(caller, frame, HOOK_CALLERS)), None)


def callback_path(stack: Stack) -> tuple[Frame, ...]:
    """The frames below torch's, innermost first, the one that it called last; empty where torch called nothing back."""
    for index, frame in enumerate(stack.frames):
        if of_torch(frame) and not (index and frame.file.endswith(_DECORATES)):
            path = tuple(one for one in stack.frames[:index] if not of_torch(one))
            return path if path and is_user(path[-1]) and calls_back(frame, path[-1]) else ()
    return ()


def calls_back(caller: Frame, callee: Frame, callers: Callers = _CALLERS) -> bool:
    """True if a frame of torch calls one of the program's, by a way in ``callers``."""
    return any(
        caller.file.endswith(file)
        and (functions is None or short_name(caller.function) in functions)
        and short_name(callee.function) != other
        for file, functions, other in callers
    )


@once
def python_called_back(case: Case, rank: Member) -> CalledBack | None:
    """How much of a training thread's time goes into such loops of Python, and where most of it; None without any."""
    seen, ever = case.profile(rank, LATELY_SECONDS), case.profile(rank)
    callees = {(frame.function, frame.file) for frame in ever.frames(called_back)}
    moves = {callee for callee in callees if _moves(case.history, ever, callee)}

    def within(stack: Stack) -> bool:
        path = callback_path(stack)
        return bool(path) and (path[-1].function, path[-1].file) in moves and _turns(case.history, stack, path)

    frame = seen.where(within).commonest(called_back)
    return None if frame is None else CalledBack(seen.share_where(within), frame, *gil_samples(ever, within))


def _turns(history: History, stack: Stack, path: tuple[Frame, ...]) -> bool:
    """True if a loop of the program's is on the way to where a stack stands, and no work that has a name of its own."""
    lines = ((frame, line_of(history, frame)) for frame in path if is_user(frame))
    loops = any(in_comprehension(history, frame) or (line is not None and bool(line.loops)) for frame, line in lines)
    return loops and not inner_tags(stack)


def _moves(history: History, seen: Profile, callee: tuple[str, str]) -> bool:
    """True if what was called back is seen on several ways through its lines, and at some at which nothing but Python runs.

    Of a comprehension only one line shows.
    """
    ways: Counter[tuple[Frame, ...]] = Counter()
    plain = inlined = 0
    for one in seen.sights:
        path = callback_path(one.reading)
        if path and (path[-1].function, path[-1].file) == callee and _turns(history, one.reading, path):
            ways[path] += one.reading.samples
            plain += one.reading.samples if is_plain(history, path[0]) else 0
            inlined += one.reading.samples if in_comprehension(history, path[0]) else 0
    total = sum(ways.values())
    several = total > 0 and max(ways.values()) < NEARLY_ALL * total
    return plain > NOTABLE * total and (several or inlined > NEARLY_ALL * total)


# What it waits for in the kernel at lines of the program's own: stacks say where it is, threads what for. The two are read at
# different moments: a wait that is known to have lasted since a sample was taken belongs to it, else the nearest sample is taken.

NEAR_SECONDS = 0.3  # of a look, where a sample belongs to it
WITHIN = frozenset({"profiler", "ssl", "selector", "file_lock"})  # tags of what only waits, for whichever work


@dataclass(frozen=True)
class KernelWaits:
    """Samples of a training thread at the lines where it was seen in waits of some kind."""

    rank: Member
    seen: Profile
    share: float  # of its time
    frame: Frame  # where most of them are
    looks: tuple[Thread, ...]  # in such a wait


def kernel_waits(
    case: Case, rank: Member, holds: Callable[[Thread], bool], fits: Callable[[Stack], bool] = lambda _: True
) -> KernelWaits | None:
    """The waits of a rank's training thread for which something holds, at stacks that fit and are of no known work; None if few."""
    tid, seen = case.progress[rank.pid].thread, case.profile(rank, LATELY_SECONDS)
    looks = case.history.series(Thread, rank.pid, tid, seconds=LATELY_SECONDS)
    waiting = [one for one in looks if holds(one.reading)]
    if seen.samples < ENOUGH_SAMPLES or len(waiting) < TWICE:
        return None
    at: Counter[Frame] = Counter(frame for one in waiting if (frame := _stood_at(seen, one)) is not None)
    places = {frame for frame, times in at.items() if at.total() >= TWICE and times >= MUCH * len(waiting)}

    lines = [line for one in places if (line := line_of(case.history, one)) is not None and line.retried_calls]

    def there(stack: Stack) -> bool:
        frame = user_frame(stack)
        stands = frame in places or any(_is_tried(line_of(case.history, frame), one) for one in lines)
        return stands and _only_waits(stack) and fits(stack)

    frame = seen.top_line(there)
    if frame is None:
        return None
    return KernelWaits(rank, seen.where(there), seen.share_where(there), frame, tuple(one.reading for one in waiting))


def _stood_at(seen: Profile, look: Seen[Thread]) -> Frame | None:
    """Where the thread stood at a look."""
    since = look.at - max(NEAR_SECONDS, look.reading.ran_ago_seconds or 0.0)
    near = [
        one for one in seen.sights if one.at - one.reading.span_seconds <= look.at + NEAR_SECONDS and one.at >= since
    ]
    nearest = min(near, key=lambda one: abs(one.at - look.at), default=None)
    return user_frame(nearest.reading) if nearest is not None and _only_waits(nearest.reading) else None


def _is_tried(line: SourceLine | None, rest: SourceLine) -> bool:
    """True if a line is what a loop tries that sleeps at another line when the try has failed."""
    if line is None or rest.loop_lines is None or line.file != rest.file:
        return False
    within = rest.loop_lines[0] <= line.line <= rest.loop_lines[1]
    return within and not set(rest.retried_calls).isdisjoint(line.calls)


def _only_waits(stack: Stack) -> bool:
    """True if a stack stands at a line of the program's own that calls native code, or in library code that does nothing but wait."""
    found = tags(stack)
    return (
        bool(stack.frames) and found <= WITHIN and (bool(found - {"profiler"}) or stack.frames[0] == user_frame(stack))
    )


@dataclass(frozen=True)
class FileLock:
    """A lock on a file that others hold again and again while a training thread waits for it."""

    waits: KernelWaits
    path: str
    holders: tuple[int, ...]  # PIDs
    sightings: int


@once
def at_file_lock(case: Case, rank: Member) -> FileLock | None:
    """The lock on a file that a rank waits for: in the kernel, or in sleeps between tries while another process has the file locked.

    What a database sleeps for in its own code, between two tries for its lock, is no line of the program that sleeps.
    """
    held: Counter[tuple[str, int]] = Counter()
    for key in case.history.of(Descriptor, rank.pid):
        for one in case.history.series(Descriptor, *key, seconds=LATELY_SECONDS):
            held.update((one.reading.target, pid) for pid in one.reading.lock_holders if pid != rank.pid)

    def fits(stack: Stack) -> bool:
        line = line_of(case.history, user_frame(stack))
        tries = line is not None and tries_for_a_lock(line)
        return tries or not rests(case.history, stack) or retries(case.history, stack)

    def asleep(look: Thread) -> bool:
        return look.wait is not None and look.wait.kind in ("lock", "sleep")

    waits = kernel_waits(case, rank, asleep, fits) if held else None
    if waits is None:
        return None
    path = held.most_common(1)[0][0][0]
    return FileLock(waits, path, tuple(sorted(pid for target, pid in held if target == path)), held.total())
