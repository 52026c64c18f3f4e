"""The endpoint that the profilers ask: who is answered, from where, and what a process of the job gets."""

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfwatch.captures.kineto.endpoint import Endpoint
from perfwatch.captures.kineto.protocol import HEADER, answer

pytestmark = pytest.mark.live


class Client:
    """What Kineto is inside a process of the job."""

    def __init__(self, folder: Path, name: str = "dynoconfigclient-1") -> None:
        self.path = folder / name
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.settimeout(5.0)

    def ask(self, kinds: int = 3, pid: int | None = None) -> None:
        """One poll."""
        payload = struct.pack("<iiqi", kinds, 1, 0, pid or os.getpid())
        self._socket.sendto(HEADER.pack(len(payload), b"req") + payload, str(self._folder / "dynolog"))

    def answer(self) -> tuple[bytes, str]:
        """What came back, and from which address."""
        return self._socket.recvfrom(4096)

    def close(self) -> None:
        """End; the socket file stays, as Kineto's does."""
        self._socket.close()


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    """An endpoint in the test's folder."""
    endpoint = Endpoint(str(tmp_path / "dynolog"))
    yield endpoint
    endpoint.close()


@pytest.fixture
def client(tmp_path: Path, endpoint: Endpoint) -> Iterator[Client]:
    """A profiler that asks it."""
    client = Client(tmp_path)
    yield client
    client.close()


def test_answer_comes_from_the_bound_socket(endpoint: Endpoint, client: Client, tmp_path: Path) -> None:
    """Kineto terminates its process when an answer comes from an address that is not the daemon's."""
    client.ask()
    endpoint.serve()

    assert client.answer() == (answer(), str(tmp_path / "dynolog"))


def test_socket_is_private(endpoint: Endpoint, tmp_path: Path) -> None:
    """Nobody else may ask, or be told."""
    assert (tmp_path / "dynolog").stat().st_mode & 0o777 == 0o600


def test_window_is_handed_out_once(endpoint: Endpoint, client: Client) -> None:
    """The first poll after the offer gets it, the next one nothing."""
    endpoint.answer({"command": "offer", "texts": {str(os.getpid()): "KEY=1\n"}, "seconds": 5.0})
    answers = []
    for _ in range(2):
        client.ask()
        endpoint.serve()
        answers.append(client.answer()[0])

    assert answers == [answer("KEY=1\n"), answer()]


def test_window_goes_to_the_process_that_the_kernel_names(endpoint: Endpoint, client: Client) -> None:
    """A process may say any pid (in a container it has another one): its own counts, as we see it."""
    endpoint.answer({"command": "offer", "texts": {str(os.getpid()): "KEY=1\n", "1": "KEY=2\n"}, "seconds": 5.0})
    client.ask(pid=1)
    endpoint.serve()

    assert client.answer()[0] == answer("KEY=1\n")


def test_process_at_work_is_not_given_another_window(endpoint: Endpoint, client: Client) -> None:
    """It would be dropped: a trace is being taken, perhaps by the job itself."""
    endpoint.answer({"command": "offer", "texts": {str(os.getpid()): "KEY=1\n"}, "seconds": 5.0})
    client.ask(kinds=1)
    endpoint.serve()

    assert client.answer()[0] == answer()
    assert endpoint.answer({"command": "clients"})["clients"][0]["idle"] is False


def test_late_poll_gets_nothing(tmp_path: Path) -> None:
    """A rank that asks when the window has begun elsewhere would record another one."""
    now = 0.0
    endpoint = Endpoint(str(tmp_path / "dynolog"), clock=lambda: now)
    client = Client(tmp_path)
    endpoint.answer({"command": "offer", "texts": {str(os.getpid()): "KEY=1\n"}, "seconds": 5.0})
    now = 6.0
    client.ask()
    endpoint.serve()

    assert client.answer()[0] == answer()
    client.close()
    endpoint.close()


def test_socket_files_of_ended_processes_are_removed(tmp_path: Path) -> None:
    """Kineto leaves its own behind; workers that are started anew each epoch would fill the folder."""
    now = 0.0
    endpoint = Endpoint(str(tmp_path / "dynolog"), clock=lambda: now)
    program = (
        "import socket, sys, struct, os\n"
        "client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "client.bind(sys.argv[1] + '/dynoconfigclient-2')\n"
        "client.sendto(struct.pack('<Q32siiqi', 20, b'req', 3, 1, 0, os.getpid()), sys.argv[1] + '/dynolog')\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=30)
    endpoint.serve()
    now = 100.0
    endpoint.forget()

    assert not (tmp_path / "dynoconfigclient-2").exists()
    assert endpoint.answer({"command": "clients"})["clients"] == []
    endpoint.close()


def test_flood_of_nonsense_is_survived(endpoint: Endpoint, client: Client, tmp_path: Path) -> None:
    """Datagrams that are no questions get no answer and cost no memory."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as noise:
        noise.bind(str(tmp_path / "noise"))
        for _ in range(5):
            noise.sendto(b"\xff" * 3000, str(tmp_path / "dynolog"))
            endpoint.serve()
        noise.setblocking(False)
        with pytest.raises(BlockingIOError):
            noise.recv(10)
    client.ask()
    endpoint.serve()

    assert client.answer()[0] == answer()
