"""``run`` is never in the data path."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.supervise.conftest import PATIENCE_SECONDS, Launch, python

pytestmark = pytest.mark.live


def test_stdin_reaches_the_child_and_its_stdout_is_its_own(launch: Launch) -> None:
    """What goes in comes out, and nothing of ours is on stdout."""
    run = launch("cat", stdin=subprocess.PIPE)

    assert run.process.communicate("first\nsecond\n", timeout=PATIENCE_SECONDS)[0] == "first\nsecond\n"


def test_quiet_says_nothing_at_all(launch: Launch) -> None:
    """With --quiet stderr holds what the child wrote, and no more."""
    run = launch("sh", "-c", "echo hers >&2", options=("--quiet",))
    run.end()

    assert run.rest() == ("", "hers\n")


def test_options_of_the_command_are_not_ours(launch: Launch) -> None:
    """Everything after the double dash belongs to the command."""
    run = launch("echo", "--quiet", "-h", "--", "x")

    assert run.line() == "--quiet -h -- x"


def test_reader_sees_the_end_when_the_child_closes_its_stdout(launch: Launch) -> None:
    """The launcher does not hold the child's stdout open."""
    run = launch(*python("import os, sys; os.close(1); sys.stdin.read()"), stdin=subprocess.PIPE)

    assert run.line() == ""
    assert run.process.poll() is None


def test_inherited_descriptor_reaches_the_child_and_is_not_kept(launch: Launch) -> None:
    """A pipe that the parent left open (PMI, a lock) is the child's: its end shows when the child closes it."""
    reader, writer = os.pipe()
    program = f"import os, sys; os.write({writer}, b'here'); os.close({writer}); sys.stdin.read()"
    run = launch(*python(program), stdin=subprocess.PIPE, pass_fds=(writer,))
    os.close(writer)

    assert os.read(reader, 10) == b"here"
    assert select.select([reader], [], [], PATIENCE_SECONDS)[0] == [reader]
    assert os.read(reader, 10) == b""
    assert run.process.poll() is None
    os.close(reader)


def test_child_has_the_process_group_and_mask_that_we_got(launch: Launch) -> None:
    """Same group (the terminal's signals reach it), no blocked signal, SIGPIPE as a new program expects it."""
    program = (
        "import os\n"
        "status = dict(line.split(':') for line in open('/proc/self/status') if line.startswith('Sig'))\n"
        "parent = os.getppid()\n"
        "print(os.getpgid(parent) == os.getpgid(0), int(status['SigBlk'], 16))\n"
    )
    run = launch(*python(program))

    assert run.line() == "True 0"


def test_sigpipe_ends_the_child_as_without_us(launch: Launch) -> None:
    """Python ignores SIGPIPE in itself; the child starts with the default."""
    run = launch("sh", "-c", "grep SigIgn /proc/self/status")

    assert int(run.line().split()[1], 16) & (1 << (13 - 1)) == 0


def test_nohup_is_kept(launch: Launch) -> None:
    """A SIGHUP that was ignored when we started is ignored in the child."""
    program = [sys.executable, "-m", "perfwatch", "run", "-q", "--", "grep", "SigIgn", "/proc/self/status"]
    done = subprocess.run(["nohup", *program], capture_output=True, text=True, timeout=PATIENCE_SECONDS)

    assert int(done.stdout.split()[1], 16) & 1 == 1


CLOSED = ("<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-")
LIBRARY = "--capture-on slow"  # read by the command line library, not by the short way


@pytest.mark.parametrize(("closed", "options"), [*((streams, "") for streams in CLOSED), (CLOSED[-1], LIBRARY)])
def test_closed_stream_stays_closed_for_the_child_and_hangs_nothing(tmp_path: Path, closed: str, options: str) -> None:
    """Whichever streams we are started without, the child is without them too, and we end as it ended."""
    report = tmp_path / "report"
    program = (
        "import os, sys\n"
        "def is_open(stream):\n"
        "    try: return bool(os.fstat(stream))\n"
        "    except OSError: return False\n"
        "text = ''.join(str(stream) for stream in range(3) if is_open(stream))\n"
        "open(sys.argv[1], 'w').write(text)\n"
        "sys.exit(3)\n"
    )
    ours = [sys.executable, "-m", "perfwatch", "run", *options.split(), "--", *python(program), str(report)]
    with subprocess.Popen(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *ours],
        env={**os.environ, "PERFWATCH_DIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as run:
        try:
            code = run.wait(PATIENCE_SECONDS)
        finally:
            run.kill()

    assert code == 3
    assert report.read_text() == "".join(
        stream for stream, word in zip("012", ("<&-", ">&-", "2>&-"), strict=True) if word not in closed.split()
    )
