"""The control socket: bounded, private, and the way from a second terminal to a running watcher."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfwatch.processes.channel import Message
from perfwatch.processes.control import LONGEST_REQUEST_BYTES, ControlServer, ask, find_watcher, joined_control

pytestmark = pytest.mark.live


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:  # noqa: D102
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The server's clock."""
    return Clock()


@pytest.fixture
def server(tmp_path: Path, clock: Clock) -> Iterator[ControlServer]:
    """A server that answers with the request's own words."""
    server = ControlServer(tmp_path / "control", lambda request: {"ok": True, "echo": request}, clock)
    yield server
    server.close()


def connected(tmp_path: Path) -> socket.socket:
    """A client that has said nothing yet."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    client.connect(str(tmp_path / "control"))
    return client


def test_request_is_answered(server: ControlServer, tmp_path: Path) -> None:
    """One line in, one line out."""
    with connected(tmp_path) as client:
        client.sendall(b'{"command": "status"}\n')
        server.serve()

        assert json.loads(client.recv(1000)) == {"ok": True, "echo": {"command": "status"}}


def test_a_flood_of_silent_clients_keeps_no_request_waiting(server: ControlServer, tmp_path: Path) -> None:
    """The longest silent ones make room, so whoever asks is heard in the next round."""
    silent = []
    for _ in range(200):
        silent.append(connected(tmp_path))
        server.serve()
    with connected(tmp_path) as client:
        client.sendall(b'{"command": "status"}\n')
        server.serve()

        assert json.loads(client.recv(1000))["ok"]
    for one in silent:
        one.close()


def test_socket_is_private(server: ControlServer, tmp_path: Path) -> None:
    """Nobody else may connect."""
    assert (tmp_path / "control").stat().st_mode & 0o777 == 0o600


def test_request_that_nobody_thought_of_ends_nothing(tmp_path: Path, clock: Clock) -> None:
    """Who asks it is told what went wrong; the next one is served."""
    server = ControlServer(tmp_path / "control", lambda request: {"ok": True, "half": 1 / request["by"]}, clock)
    answers = []
    for by in (b"0", b"2"):
        with connected(tmp_path) as client:
            client.sendall(b'{"by": %s}\n' % by)
            server.serve()
            answers.append(json.loads(client.recv(1000)))
    server.close()

    assert answers == [
        {"ok": False, "error": "internal error: ZeroDivisionError: division by zero"},
        {"ok": True, "half": 0.5},
    ]


@pytest.mark.parametrize("line", [b"not json\n", b"[1, 2]\n", b"[" * 50_000 + b"\n"])
def test_nonsense_gets_an_error(server: ControlServer, tmp_path: Path, line: bytes) -> None:
    """What is no object is refused in words."""
    with connected(tmp_path) as client:
        client.sendall(line)
        server.serve()

        assert json.loads(client.recv(1000))["ok"] is False


def test_client_that_says_nothing_is_dropped_after_its_deadline(
    server: ControlServer, tmp_path: Path, clock: Clock
) -> None:
    """It keeps no place and blocks nobody."""
    with connected(tmp_path) as client:
        server.serve()
        clock.now = 10.0
        server.serve()

        assert client.recv(1) == b""
        assert len(server.filenos()) == 1


def test_endless_request_is_cut_off(server: ControlServer, tmp_path: Path) -> None:
    """64 KiB without a line end is no request."""
    with connected(tmp_path) as client:
        client.setblocking(False)
        sent = 0
        while sent < LONGEST_REQUEST_BYTES:
            try:
                sent += client.send(b"x" * 4096)
            except BlockingIOError:
                server.serve()
        server.serve()
        server.serve()

        assert len(server.filenos()) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
def test_another_user_is_not_heard(tmp_path: Path, clock: Clock) -> None:
    """Even where the file's mode would let them in."""
    asked: list[Message] = []

    def answer(request: Message) -> Message:
        asked.append(request)
        return {"ok": True}

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        control = Path(folder) / "control"
        server = ControlServer(control, answer, clock)
        control.chmod(0o666)
        program = (
            "import os, socket, sys\n"
            "os.setuid(65534)\n"
            "client = socket.socket(socket.AF_UNIX)\n"
            "client.connect(sys.argv[1])\n"
            "client.sendall(b'{}\\n')\n"
            "print('sent', flush=True)\n"
            "sys.stdin.read()\n"
        )
        command = [sys.executable, "-c", program, str(control)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"sent\n"
            server.serve()
            server.serve()
            listening = server.filenos()
        server.close()

    assert asked == []
    assert len(listening) == 1


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Callable[[], tuple[int, int, Path]]]:
    """Start a watched ``cat`` under a shell; gives the pids of shell and cat and the control socket."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> tuple[int, int, Path]:
        run = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "perfwatch",
                "run",
                "-q",
                "--",
                "sh",
                "-c",
                "echo $$; sh -c 'echo $$; exec cat'; true",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PERFWATCH_DIR": str(tmp_path)},
        )
        started.append(run)
        assert run.stdout is not None
        shell, cat = int(run.stdout.readline()), int(run.stdout.readline())
        return shell, cat, _when_watched(shell)

    yield start
    for run in started:
        assert run.stdin is not None
        run.stdin.close()
        run.wait(30)
        assert run.stdout is not None
        run.stdout.close()


def _when_watched(pid: int) -> Path:
    """The control socket, once the watcher is up."""
    for _ in range(600):
        control = find_watcher(pid)
        if control is not None:
            return control
        select.select([], [], [], 0.05)
    raise AssertionError(f"nobody watches {pid}")


def test_any_process_of_the_job_leads_to_its_watcher(watched: Callable[[], tuple[int, int, Path]]) -> None:
    """The root, what is below it, and the launcher itself."""
    shell, cat, control = watched()
    launcher = int(Path(f"/proc/{shell}/stat").read_text().rsplit(")", 1)[1].split()[1])

    assert [find_watcher(pid) for pid in (shell, cat, launcher)] == [control] * 3


def test_watcher_answers_status_and_verdict(watched: Callable[[], tuple[int, int, Path]], tmp_path: Path) -> None:
    """A second terminal learns where the session lies and what the job looks like now."""
    shell, _, control = watched()
    status = ask(control, {"command": "status"}, deadline_seconds=20.0)
    verdict = ask(control, {"command": "verdict"}, deadline_seconds=20.0)

    assert status["roots"] == [shell]
    assert Path(status["session"]).parent == tmp_path
    assert verdict["verdict"]["schema"] == "perfwatch.verdict/1"


def test_asking_where_nobody_listens_fails_at_once(tmp_path: Path) -> None:
    """A socket that a killed watcher left is an error, not a wait."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "control"))

    with pytest.raises(ConnectionRefusedError):
        ask(tmp_path / "control", {"command": "status"}, deadline_seconds=10.0)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("of_root", [False, True])
def test_a_socket_of_another_user_is_told_nothing(of_root: bool) -> None:
    """A link in a place may lead to any service of the machine, and any user may take the name of root's watcher."""
    program = (
        "import os, socket, sys; os.setuid(65534); one = socket.socket(socket.AF_UNIX); one.bind(sys.argv[1]); one.listen();"
        "print('listening', flush=True); print(one.accept()[0].recv(100))"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        command = [sys.executable, "-c", program, f"{folder}/control"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as listening:
            assert listening.stdout is not None
            assert listening.stdout.readline() == b"listening\n"
            with pytest.raises(PermissionError):
                ask(Path(folder) / "control", {"command": "status"}, 10.0, of_root)

            assert listening.stdout.readline() == b"b''\n"


@pytest.mark.parametrize("line", [b"[1]\n", b"not json\n", b"[" * 100_000 + b"\n"])
def test_an_answer_that_is_none_is_an_error(tmp_path: Path, line: bytes) -> None:
    """As if nobody had answered."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control"))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)  # the request, which could not be sent to one that has hung up
                connection.sendall(line)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match="an answer that cannot be parsed"):
            ask(tmp_path / "control", {"command": "status"}, deadline_seconds=10.0)
        thread.join()


def test_stopped_watcher_runs_into_the_deadline(tmp_path: Path) -> None:
    """Whoever asks a watcher that does not answer is told so in time."""
    server = ControlServer(tmp_path / "control", lambda request: {"ok": True})

    with pytest.raises(TimeoutError):
        ask(tmp_path / "control", {"command": "status"}, deadline_seconds=0.05)
    server.close()
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that can be watched."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        assert process.stdin is not None
        process.stdin.close()


def test_a_watcher_that_has_not_started_the_job_is_asked_too(tmp_path: Path, sleeper: int) -> None:
    """By ``attach``, which says so; the daemon hands a job over to none but ``run``. When it leaves, nothing of it is left."""
    environment = {**os.environ, "PERFWATCH_DIR": str(tmp_path)}
    words = [sys.executable, "-m", "perfwatch", "attach", str(sleeper)]
    watch = subprocess.Popen(
        [*words, "--watch", "--hang-timeout", "2"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ends = time.monotonic() + 60
    while (control := find_watcher(sleeper)) is None and time.monotonic() < ends:
        select.select([], [], [], 0.05)
    assert control is not None
    state = ask(control, {"command": "status"}, 30)
    judged = subprocess.run([*words, "--json"], env=environment, capture_output=True, text=True, timeout=120)
    alone = find_watcher(sleeper, runs_alone=True)
    watch.send_signal(signal.SIGTERM)
    watch.wait(60)

    assert (state["mode"], state["roots"], alone) == ("attach", [sleeper], None)
    assert "perfwatch: asking the perfwatch attach that has watched this job for " in judged.stderr
    assert json.loads(judged.stdout)["schema"].startswith("perfwatch.verdict/")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == [Path(state["session"]).name]
    assert find_watcher(sleeper) is None


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
@pytest.mark.parametrize(("weakened", "served"), [((), True), (("setpriv", "--bounding-set=-all", "--inh-caps=-all"), False),
                                                   (("setpriv", "--reuid", "65534", "--clear-groups"), False)])  # fmt: skip
def test_a_socket_without_a_file_serves_only_who_can_do_all_that_we_can(
    weakened: tuple[str, ...], served: bool
) -> None:
    """Root of a container that shares our network, and any other user, can connect to it, and are told nothing."""
    control = joined_control()
    server = ControlServer(control, lambda request: {"ok": True})
    ask_it = f"import socket; s = socket.socket(1); s.connect(chr(0) + {str(control)[1:]!r}); s.sendall(b'{{}}' + bytes([10])); "
    program = f"{ask_it}print(s.recv(100))"
    with subprocess.Popen([*weakened, "/usr/bin/env", "python3", "-c", program], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin"}) as client:  # fmt: skip
        while client.poll() is None:
            select.select(server.filenos(), [], [], 0.1)
            server.serve()
        assert client.stdout is not None
        told = client.stdout.read()
    server.close()

    assert (b"true" in told) is served


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
@pytest.mark.parametrize(("user", "told"), [(65534, "public"), (65533, ""), (0, "all")])
def test_a_watcher_of_root_tells_the_user_of_the_job_what_is_public(user: int, told: str) -> None:
    """Other users are not served; root gets every answer."""
    control = joined_control()
    server = ControlServer(
        control,
        lambda request: {"told": "all"},
        public=lambda uid: (lambda request: {"told": "public"}) if uid == 65534 else None,
    )
    ask_it = f"import socket; s = socket.socket(1); s.connect(chr(0) + {str(control)[1:]!r}); s.sendall(b'{{}}' + bytes([10])); "
    changed = () if user == 0 else ("setpriv", "--reuid", str(user), "--clear-groups")
    with subprocess.Popen([*changed, "/usr/bin/env", "python3", "-c", f"{ask_it}print(s.recv(100).decode())"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin"}) as client:  # fmt: skip
        while client.poll() is None:
            select.select(server.filenos(), [], [], 0.1)
            server.serve()
        assert client.stdout is not None
        said = client.stdout.read().decode()
    server.close()

    assert said == (f'{{"told": "{told}"}}\n\n' if told else "")
