"""What a native profile says of a training thread, once it trains: what its imports and its start cost is no part of it."""

import re

from perfwatch.triage.cards.accelerated import LONGEST_SECONDS, trained_for
from perfwatch.triage.case import Case
from perfwatch.triage.roles.job import Member
from perfwatch_probes.readings import NativeProfile

TAKES_SECONDS = 1.0
# Native symbols of tensor arithmetic: torch, its BLAS and its thread pools.
_TORCH = re.compile(
    r"at::|c10|torch|caffe2|mkl|gemm|gemv|blas|dnnl|fbgemm|xnn|cpuinfo|omp_|gomp|kmp|sleef|Sleef|vml|vectorized|autograd"
)
# Functions of the interpreter that are named so; of loops of Python a third to a half of the time is in them.
_PYTHON = re.compile(r"_?Py[A-Z_]")


def native_profile(case: Case, rank: Member, seconds: float = LONGEST_SECONDS) -> NativeProfile | None:
    """The newest profile of the training thread over the last ``seconds``, none of it from before the first step."""
    seen = case.history.latest(NativeProfile, rank.pid, case.progress[rank.pid].thread)
    since = min(seconds, trained_for(case, rank) - TAKES_SECONDS)
    return seen.reading if seen is not None and seen.at >= case.at - since else None


def native_python_share(case: Case, rank: Member) -> float | None:
    """Share of a native profile of the training thread that is not tensor arithmetic; None without a profile."""
    seen = native_profile(case, rank)
    return None if seen is None else sum(share for symbol, share in seen.shares.items() if not _TORCH.search(symbol))


def interpreter_share(case: Case, rank: Member) -> float | None:
    """Share of a native profile of the training thread in the interpreter's own functions; None without a profile."""
    seen = native_profile(case, rank)
    return None if seen is None else sum(share for symbol, share in seen.shares.items() if _PYTHON.match(symbol))
