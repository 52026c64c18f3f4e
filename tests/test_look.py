"""What one look at a process with very many threads covers."""

import subprocess
import sys

from perfwatch.watching.look import MOST_THREADS, Look

PROGRAM = f"""
import ctypes, sys, threading
libc = ctypes.CDLL(None)
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
for _ in range({MOST_THREADS} + 16):
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, pause, None)
late = threading.Thread(target=sys.stdin.read, daemon=True)
late.start()
print(late.native_id, flush=True)
late.join()
"""


def test_a_python_thread_that_began_after_a_hundred_native_ones_is_looked_at() -> None:
    """Torch's pools have a thread for each core, and a program's own threads begin after them."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        late = int(program.stdout.readline())
        look = Look(sink=lambda _: None)
        look.processes([program.pid])
        look.dump([program.pid])
        seen = [thread.tid for thread in look.threads(program.pid)]
        look.close()
        program.communicate(b"")

    assert late in seen
    assert len(seen) == MOST_THREADS
