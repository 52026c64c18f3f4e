"""Where a running thread spends its time in native code: ``perf record`` on that one thread for about a second.

Python stacks name the line; this tells whether the time below it goes to the interpreter's loop, the garbage collector,
BLAS, a regular expression or a spinning driver call. The thread is sampled by a timer of the kernel (cpu-clock, user
space only, 199 Hz so as not to beat with anything) and is never stopped. Nothing is written to disk.
Symbols are read from the files that the job has mapped, by their paths, so as the job's user (``perfwatch_probes.guest``).

Measured with perf 6.1 on a PyTorch process: record 0.2 CPU s; reading the symbols of libtorch 0.9 CPU s at the lowest
priority, with C++ names left mangled (2 s more for perf's own demangling): for one suspect, once. So ``readable`` makes
``at::native::add`` of ``_ZN2at6native3addE...`` and drops argument types, which are not needed here.
"""

import contextlib
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable

from perfwatch_probes.external import kill, reap, start
from perfwatch_probes.guest import Arrival, Guests
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import NativeProfile

RATE_HZ = 199
SECONDS = 1.0
DEADLINE_SECONDS = 8.0  # for both stages; a second of samples took up to 2.4 s to collect and 2.9 s to resolve
MOST_SYMBOLS = 20
OUTPUT_LIMIT_BYTES = 16 * 2**20
SYMBOL_BYTES = 16 * 2**30  # perf maps the libraries whose symbols it reads: those of torch with CUDA are 3 GiB
SYMBOL_TABLE_BYTES = 2**30  # of the memory that it may fill; a crafted library has any number of symbols
INSTALL_ADVICE = "apt install linux-perf (Debian), linux-tools-$(uname -r) (Ubuntu) or dnf install perf"
# "     7f8558939638 _PyObject_HasLen (/usr/lib/libpython3.11.so.1.0)"
_SAMPLE = re.compile(r"^\s*[0-9a-f]+ (?:(?P<symbol>\S.*?) )?\((?P<object>[^()]*)\)$", re.M)


class NativeProbe:
    """Starts native profiles with perf, if there is one.

    Args:
        command: path of perf; the one on PATH when None.
        guests: know as whom a process acts.
    """

    NAME = "native"
    NEEDS = "perf; kernel.perf_event_paranoid at most 2 for our own processes, else root or CAP_PERFMON"
    COST = "about 1.1 s of CPU per profile, most of it reading symbols at the lowest priority; the thread is not paused"

    def __init__(self, command: str | None = None, guests: Guests | None = None) -> None:
        self.command = command or shutil.which("perf")
        self._guests = guests or Guests()

    def start(self, pid: int, tid: int, seconds: float = SECONDS) -> "NativeRecord":
        """Start sampling a thread. Raises Unavailable without a perf that starts."""
        if self.command is None:
            raise Unavailable("perf is not installed: native time of a thread cannot be told apart", INSTALL_ADVICE)
        identity = self._guests.identity(pid)
        return NativeRecord(self.command, pid, tid, seconds, Arrival(identity, memory_bytes=SYMBOL_BYTES).settle)

    def look(self, pid: int, tid: int, seconds: float = SECONDS) -> list[NativeProfile]:
        """One profile, waiting for it. Raises Unavailable."""
        record = self.start(pid, tid, seconds)
        try:
            while (profile := record.poll()) is None:
                time.sleep(0.02)
        finally:
            record.kill()
        return [profile]


class NativeRecord:
    """A profile under way: first ``perf record``, then ``perf script`` on what it wrote, both into memory.

    Attributes:
        cpu_seconds: what perf has used so far.
    """

    def __init__(self, command: str, pid: int, tid: int, seconds: float, settle: Callable[[], None]) -> None:
        self._command, self.pid, self.tid, self._settle = command, pid, tid, settle
        self._until = time.monotonic() + seconds + DEADLINE_SECONDS
        self.cpu_seconds = 0.0
        self._samples = os.memfd_create("perfwatch-perf")
        self._text = os.memfd_create("perfwatch-perf-text")
        self._resolving = False
        # -B -N: no build ids, no cache in the home directory; the "program" that perf runs is only its timer.
        options = ["record", "-B", "-N", "-q", "-e", "cpu-clock:u", "-F", str(RATE_HZ), "-t", str(tid), "-o", "-"]
        try:
            self._child = start([command, *options, "--", "sleep", f"{seconds:.2f}"], stdout=self._samples)
        except Unavailable:
            self._close()
            raise

    def poll(self) -> NativeProfile | None:
        """None while it runs, then the profile, once. Raises Unavailable when perf failed or was late."""
        cpu_seconds = reap(self._child, 0.0)
        if cpu_seconds is None:
            if time.monotonic() > self._until:
                self.kill()
                raise Unavailable(f"perf on thread {self.tid} gave no answer in time and was killed")
            return None
        self.cpu_seconds += cpu_seconds
        try:
            if self._child.returncode != 0:
                raise explain(self._errors(), self.tid)
            if not self._resolving:
                self._resolve()
                return None
            size = os.fstat(self._text).st_size
            text = os.pread(self._text, min(size, OUTPUT_LIMIT_BYTES), 0).decode(errors="replace")
        except Unavailable:
            self.kill()
            raise
        self.kill()
        return parse_samples(text, self.pid, self.tid)

    def kill(self) -> None:
        """End perf (never the job); harmless when it has ended."""
        if self._child.returncode is None:
            kill(self._child)
            self.cpu_seconds += reap(self._child, 0.2) or 0.0
            self._child.returncode = -9
        if self._child.stderr is not None:
            self._child.stderr.close()
        self._close()

    def _resolve(self) -> None:
        if self._child.stderr is not None:
            self._child.stderr.close()
        self._resolving = True
        os.lseek(self._samples, 0, os.SEEK_SET)
        options = ["script", "--no-demangle", "-i", "-", "-F", "ip,sym,dso"]
        self._child = start(
            ["nice", "-n", "19", self._command, *options], stdin=self._samples, stdout=self._text, settle=self._settle,
            memory_bytes=SYMBOL_TABLE_BYTES,
        )  # fmt: skip

    def _errors(self) -> str:
        return self._child.stderr.read(1 << 16).decode(errors="replace") if self._child.stderr is not None else ""

    def _close(self) -> None:
        for name in ("_samples", "_text"):
            with contextlib.suppress(OSError):
                os.close(getattr(self, name))
            setattr(self, name, -1)


def explain(errors: str, tid: int) -> Unavailable:
    """What perf's complaint means, with its fix. Pure."""
    if re.search(r"is limited|not permitted|Permission denied|No permission|paranoid", errors):
        return Unavailable(
            f"perf may not sample thread {tid}: another user's, or kernel.perf_event_paranoid or seccomp forbids it",
            "sudo sysctl kernel.perf_event_paranoid=2 (own processes), run as root, or docker run --cap-add PERFMON",
        )
    if re.search(r"No such process|returned with 3|no such thread", errors, re.I):
        return Unavailable(f"thread {tid} is no more")
    if "not found for kernel" in errors or "linux-tools" in errors:
        return Unavailable("the perf of this machine does not belong to its kernel", INSTALL_ADVICE)
    return Unavailable(f"perf failed on thread {tid}: {' '.join(errors.split())[:200] or 'no reason given'}")


def parse_samples(text: str, pid: int, tid: int) -> NativeProfile:
    """Shares per symbol in the output of ``perf script -F ip,sym,dso``; unknown symbols go by their library's name."""
    names: Counter[str] = Counter()
    for match in _SAMPLE.finditer(text):
        symbol = match["symbol"]
        known = symbol is not None and symbol != "[unknown]"
        names[readable(symbol) if known else f"[{os.path.basename(match['object']) or 'unknown'}]"] += 1
    samples = names.total()
    shares = {name: count / samples for name, count in names.most_common(MOST_SYMBOLS)}
    return NativeProfile(pid=pid, tid=tid, shares=shares, samples=samples)


def readable(symbol: str) -> str:
    """The qualified name in a mangled C++ symbol, up to its template or function arguments; anything else unchanged."""
    name = re.match(r"_ZN?[KVRO]*L?(?:St|S[a-z])?", symbol)
    if name is None:
        return symbol
    parts, at = [], name.end()
    while length := re.match(r"[1-9]\d*", symbol[at:]):
        begin = at + length.end()
        at = begin + int(length[0])
        part = symbol[begin:at]
        parts.append("(anonymous)" if part.startswith("_GLOBAL__N_") else part)
    return "::".join(parts) or symbol
