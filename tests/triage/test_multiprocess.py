"""dill's copy of ``multiprocessing``, which ``datasets`` forks with: its frames mean what those of the original mean."""

import pytest

from perfwatch.triage.words.frames import own_frames, tags
from perfwatch_probes.readings import Frame, Stack

ORIGINAL, COPY = "/usr/lib/python3.11/multiprocessing", "/v/lib/python3.11/site-packages/multiprocess"


def stack(folder: str, *frames: tuple[str, str]) -> Stack:
    """Innermost first; below them a fork and what its parent had called."""
    bottom = (("_bootstrap", "process.py"), ("start", "process.py"))
    inside = tuple(Frame(function, f"{folder}/{file}", 1) for function, file in (*frames, *bottom))
    return Stack(pid=1, tid=1, frames=(*inside, Frame("main", "/app/train.py", 9)))


@pytest.mark.parametrize(
    ("frames", "tag"),
    [
        ((("_recv", "connection.py"), ("get", "queues.py")), "mp_queue_get"),
        ((("get", "queues.py"), ("worker", "pool.py")), "pool_worker"),
        ((("next", "pool.py"),), "pool_wait"),
        ((("join", "process.py"),), "mp_join"),
        ((("__enter__", "synchronize.py"),), "mp_lock"),
        ((("serve_client", "managers.py"),), "manager"),
    ],
)
def test_the_copy_is_read_as_the_original(frames: tuple[tuple[str, str], ...], tag: str) -> None:
    """Waits, workers and servers alike, and a fork's own frames end where its parent's begin."""
    original, copy = stack(ORIGINAL, *frames), stack(COPY, *frames)

    assert tag in tags(copy)
    assert tags(copy) == tags(original)
    assert len(own_frames(copy)) == len(own_frames(original)) == len(frames) + 1
