"""What a training thread does besides training: Python of the program's own, or libraries that make data.

Tensor arithmetic that the program calls from its own functions looks the same in Python stacks: there the native profile
decides.
"""

import re

from perfwatch.probes import readings as r
from perfwatch.triage.case import Case
from perfwatch.triage.code import line_of
from perfwatch.triage.frames import COMPREHENSIONS, is_user, of_torch, short_name, tags
from perfwatch.triage.history import History
from perfwatch.triage.job import Member

# Native symbols of tensor arithmetic: torch, its BLAS and its thread pools.
_TORCH = re.compile(
    r"at::|c10|torch|caffe2|mkl|gemm|gemv|blas|dnnl|fbgemm|xnn|cpuinfo|omp_|gomp|kmp|sleef|Sleef|vml|vectorized|autograd"
)

# A comprehension of a list, dict or set: from Python 3.12 on (PEP 709) it has no frame of its own.
_INLINED = re.compile(r"[\[{].*\sfor\s.+\sin\s")


def own_work(stack: r.Stack) -> bool:
    """Whether a stack is in no known kind of work at all: the program's own code, or a library without a tag."""
    return bool(stack.frames) and not tags(stack) - {"profiler"}


def own_python(history: History, stack: r.Stack) -> bool:
    """Own work that is plainly Python or a library other than torch: a comprehension, or frames of such a library inside."""
    if not own_work(stack):
        return False
    inner = stack.frames[0]
    if not is_user(inner):
        return not of_torch(inner)
    line = line_of(history, inner)
    return short_name(inner.function) in COMPREHENSIONS or (line is not None and bool(_INLINED.search(line.text)))


def native_python_share(case: Case, rank: Member) -> float | None:
    """Share of a native profile of the training thread that is not tensor arithmetic; None without a profile."""
    seen = case.history.latest(r.NativeProfile, rank.pid, case.progress[rank.pid].thread)
    if seen is None:
        return None
    return sum(share for symbol, share in seen.reading.shares.items() if not _TORCH.search(symbol))
