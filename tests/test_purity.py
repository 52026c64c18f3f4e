"""A test that is not marked live fails if it starts a process, sleeps or connects to something."""

import contextlib
import multiprocessing
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable

import pytest

from tests.purity import PURITY, NotPure

pytestmark = pytest.mark.live  # the marked tests enforce purity themselves


def forks() -> None:
    """Make a child that ends at once."""
    if os.fork() == 0:
        os._exit(0)


def connects() -> None:
    """Ask a port of this machine."""
    with socket.socket() as client:
        client.connect_ex(("127.0.0.1", 9))


def starts_a_helper() -> None:
    """Start a process in the way of ``multiprocessing``."""
    multiprocessing.get_context("spawn").Process(target=forks).start()


LIVE = [
    (forks, "starts a process"),
    (lambda: os.system("true"), "starts a process"),
    (lambda: subprocess.run(["true"]), "starts a process"),
    (starts_a_helper, "starts a process"),
    (lambda: time.sleep(0.001), "sleeps for 0.001 s"),
    (connects, "connects to something"),
    (lambda: socket.getaddrinfo("localhost", 80), "connects to something"),
]


@pytest.mark.parametrize(("does", "what"), LIVE)
def test_what_is_live_is_refused(does: Callable[[], object], what: str) -> None:
    """The sentence names it, and the mark that allows it."""
    with pytest.raises(NotPure, match=rf"this pure test {what}.*pytest\.mark\.live"), PURITY.enforced():
        does()


@pytest.mark.parametrize("does", [does for does, _ in LIVE])
def test_a_refusal_that_is_swallowed_fails_the_test_all_the_same(does: Callable[[], object]) -> None:
    """Much of our code survives whatever goes wrong, also in a thread."""

    def swallows() -> None:
        with contextlib.suppress(Exception):
            does()

    def swallows_in_a_thread() -> None:
        thread = threading.Thread(target=swallows)
        thread.start()
        thread.join()

    with pytest.raises(NotPure, match=r"pytest\.mark\.live"), PURITY.enforced():
        swallows_in_a_thread()


def test_a_thread_of_an_earlier_test_is_left_alone() -> None:
    """A server that still runs sleeps when it likes."""
    goes, slept = threading.Event(), threading.Event()

    def sleeps() -> None:
        goes.wait()
        time.sleep(0.001)
        slept.set()

    thread = threading.Thread(target=sleeps)
    thread.start()
    with PURITY.enforced():
        goes.set()
        thread.join()

    assert slept.is_set()


def test_what_is_pure_is_allowed() -> None:
    """Threads, socket pairs, and giving up the CPU."""
    with PURITY.enforced():
        one, other = socket.socketpair()
        with one, other:
            one.sendmsg([b"word"])
            assert other.recv(4) == b"word"
        time.sleep(0)
