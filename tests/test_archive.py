"""A bundle holds the session, redacted once more, and nothing else; and it can be replayed."""

import gzip
import io
import os
import resource
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from perfwatch.errors import SessionUnreadable
from perfwatch.recording import archive
from perfwatch.recording.compression import GZIP
from perfwatch.recording.recording import load
from tests.sessions import record

pytestmark = pytest.mark.live


def bundled(folder: Path) -> bytes:
    """The archive of a session."""
    output = io.BytesIO()
    archive.bundle(folder, output, lambda done, total: None)
    return output.getvalue()


def names(content: bytes) -> list[str]:
    """What is in it."""
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        return opened.getnames()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished session."""
    return record(tmp_path / "s")


def test_a_bundle_is_the_session(folder: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere it loads to the same recording."""
    (tmp_path / "b.tar.gz").write_bytes(bundled(folder))

    with archive.opened(tmp_path / "b.tar.gz") as unpacked:
        assert load(unpacked) == load(folder)
    assert not unpacked.exists()


def test_the_same_session_gives_the_same_bytes(folder: Path) -> None:
    """So that two bundles can be compared by their checksums."""
    assert bundled(folder) == bundled(folder)


def test_only_files_of_the_recording_go_in(folder: Path, tmp_path: Path) -> None:
    """No links, no captures, nothing that somebody put there; and that is said."""
    (tmp_path / "id_rsa").write_text("private")
    (folder / "notes.txt").write_text("x")
    (folder / "readings-0009.jsonl").symlink_to(tmp_path / "id_rsa")
    (folder / "captures").mkdir()
    os.mkfifo(folder / "stacks-0009.jsonl")
    output = io.BytesIO()

    result = archive.bundle(folder, output, lambda done, total: None)

    assert names(output.getvalue()) == [
        f"s/{name}" for name in ("events.jsonl", "readings-0001.jsonl", "session.json", "stacks-0001.jsonl")
    ]
    assert result.left_out == ("captures", "notes.txt", "readings-0009.jsonl", "stacks-0009.jsonl")


def test_secrets_that_an_older_version_let_through_are_taken_out(folder: Path) -> None:
    """Also in lines of types that this version does not know; lines that cannot be read at all stay behind."""
    with (folder / "readings-0002.jsonl").open("wb") as file:
        file.write(b'{"at":1,"wall":1,"reading":{"type":"Future","text":"password=SECRETabc"}}\n')
        file.write(b'{"at":1,"text":"password=SECRETabc"')
        file.write(b'\n{"at":1,"text":"\xe6\xbc"}\n')
    output = io.BytesIO()

    result = archive.bundle(folder, output, lambda done, total: None)

    with tarfile.open(fileobj=io.BytesIO(output.getvalue())) as opened:
        content = opened.extractfile("s/readings-0002.jsonl")
        assert content is not None
        text = content.read()
    assert b"[redacted]" in text
    assert b"SECRET" not in text
    assert result.dropped_lines == 2
    assert result.redacted == {"messages": 1}


def test_what_is_redacted_is_counted_by_what_it_was_each_text_once(folder: Path) -> None:
    """A command line is one text however often it was read, and a number is none."""
    process = b'{"at":1,"reading":{"type":"Process","command":["a.py","--token","[redacted]"],"environment":{"B":"x=[redacted]"}}}\n'
    other = (
        b'{"at":2,"reading":{"type":"KernelMessage","path":"/a/[redacted]","parts":[{"text":"[redacted]"}],"n":3}}\n'
    )
    (folder / "readings-0002.jsonl").write_bytes(process + process + other)

    assert archive.bundle(folder, io.BytesIO(), lambda done, total: None).redacted == {
        "command lines": 1,
        "environment variables": 1,
        "messages": 1,
        "other texts": 1,
    }


def test_a_folder_that_is_no_session_is_refused(tmp_path: Path) -> None:
    """Before anything is written."""
    with pytest.raises(SessionUnreadable):
        bundled(tmp_path)


def test_a_folder_that_somebody_has_packed_is_read(folder: Path, tmp_path: Path) -> None:
    """With its segments as they are on the disk, which are compressed."""
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as packed:
        packed.add(folder, folder.name)

    assert (folder / "readings-0001.jsonl").read_bytes().startswith(GZIP)
    with archive.opened(tmp_path / "b.tar.gz") as unpacked:
        assert load(unpacked) == load(folder)


def test_a_bundle_of_a_damaged_session_has_what_can_be_read(folder: Path) -> None:
    """A compressed segment that was cut short is one line less that could be parsed."""
    file = folder / "readings-0001.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    output = io.BytesIO()

    result = archive.bundle(folder, output, lambda done, total: None)

    assert result.dropped_lines == 1
    assert "s/readings-0001.jsonl" in names(output.getvalue())


def test_progress_ends_where_it_says(folder: Path) -> None:
    """Though more is read from compressed files than they take."""
    told: list[tuple[int, int]] = []
    archive.bundle(folder, io.BytesIO(), lambda done, total: told.append((done, total)))

    size = sum(file.stat().st_size for file in folder.iterdir())
    assert told[-1] == (size, size)
    assert told == sorted(told)


def test_a_hostile_archive_writes_nothing_outside(folder: Path, tmp_path: Path) -> None:
    """Paths that climb, links and devices: only our names are taken, wherever they lie."""
    path = tmp_path / "evil.tar.gz"
    with tarfile.open(path, "w:gz") as evil:
        for name, kind in (("../../escaped.jsonl", tarfile.REGTYPE), ("x/events.jsonl", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            evil.addfile(member)
        evil.add(folder / "session.json", "../session.json")

    with archive.opened(path) as unpacked:
        assert [file.name for file in unpacked.iterdir()] == ["session.json"]
    assert list(tmp_path.parent.glob("escaped*")) == []


@pytest.mark.parametrize("name", ["zeros.bin", "x/readings-0001.jsonl"])
def test_an_archive_of_endless_zeros_is_given_up(folder: Path, tmp_path: Path, name: str) -> None:
    """In a file of ours, and in one that is passed over."""
    path = tmp_path / "bomb.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.GNU_FORMAT) as bomb:
        member = tarfile.TarInfo(name)
        member.size = 2**21
        bomb.addfile(member, io.BytesIO(bytes(member.size)))
        bomb.add(folder / "session.json", "session.json")

    with (
        pytest.raises(SessionUnreadable, match="more than 1048576 bytes unpacked"),
        archive.opened(path, 2**20),
    ):
        pass
    with archive.opened(path, 2**23) as unpacked:
        assert (unpacked / "session.json").exists()


def test_an_archive_that_a_browser_has_unpacked_is_read(folder: Path, tmp_path: Path) -> None:
    """So far only from .tar.gz to .tar."""
    (tmp_path / "b.tar").write_bytes(gzip.decompress(bundled(folder)))

    with archive.opened(tmp_path / "b.tar") as unpacked:
        assert load(unpacked) == load(folder)


def test_a_damaged_archive_is_said_to_be_none(folder: Path, tmp_path: Path) -> None:
    """Wherever the damage is."""
    whole = bundled(folder)
    for place in (12, len(whole) // 2, len(whole) - 20):
        (tmp_path / "b.tar.gz").write_bytes(whole[:place] + b"\xff" * 8 + whole[place + 8 :])
        with pytest.raises(SessionUnreadable), archive.opened(tmp_path / "b.tar.gz") as unpacked:
            load(unpacked)


def test_a_file_that_is_no_archive_is_said_to_be_none(tmp_path: Path) -> None:
    """With the command that makes one."""
    (tmp_path / "x.tar.gz").write_bytes(b"no archive")

    with pytest.raises(SessionUnreadable, match="not an archive of a session"), archive.opened(tmp_path / "x.tar.gz"):
        pass


@pytest.mark.parametrize(
    ("name", "beside", "told"),
    [
        ("session.json", True, "name its folder"),
        ("train.py", False, "nor an archive of one"),
        ("passwd", False, "nor an archive of one"),
    ],
    ids=["a part of a session", "a script", "another text"],
)
def test_another_file_is_called_what_it_is(tmp_path: Path, name: str, beside: bool, told: str) -> None:
    """And the fix names what was meant: the folder, or the job that runs."""
    (tmp_path / name).write_bytes(b"{}")

    with pytest.raises(SessionUnreadable, match=told) as refused, archive.opened(tmp_path / name):
        pass
    advised = f"perfwatch attach {name}" if name.endswith(".py") else "perfwatch autopsy FILE"
    assert (str(tmp_path) if beside else advised) in refused.value.advice


def _header(type_: bytes, size: int) -> bytes:
    header = tarfile.TarInfo("x")
    header.type, header.size = type_, size
    return header.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize(
    "type_", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK]
)
def test_a_header_of_900_mebibytes_is_refused_unread(tmp_path: Path, type_: bytes) -> None:
    """An archive of a megabyte would take 1.9 GB of memory: it is refused within 512 MiB and a few seconds."""
    size, path = 900 * 2**20, tmp_path / "pax.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(_header(type_, size))
        for _ in range(size >> 24):
            file.write(bytes(2**24))

    done = subprocess.run(
        (sys.executable, "-m", "perfwatch", "replay", str(path)), capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29)),
    )  # fmt: skip

    assert "is not an archive of a session" in done.stderr
    assert "internal error" not in done.stderr


def test_more_members_than_any_session_has_are_refused(tmp_path: Path) -> None:
    """Each is remembered by tarfile, and read past by us."""
    path = tmp_path / "many.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(_header(tarfile.REGTYPE, 0) * 10_000)

    with pytest.raises(SessionUnreadable, match="more than 8192 members"), archive.opened(path):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_unpacked(folder: Path, tmp_path: Path, number: signal.Signals) -> None:
    """What was unpacked is removed, and the process ends by the signal, as it would without us."""
    (tmp_path / "b.tar.gz").write_bytes(bundled(folder))
    room = tmp_path / "room"
    room.mkdir()
    program = """
import sys, time
from pathlib import Path
from perfwatch.recording import archive
with archive.opened(Path(sys.argv[1])) as unpacked:
    print(unpacked, flush=True)
    time.sleep(1e6)
"""
    process = subprocess.Popen(
        (sys.executable, "-c", program, str(tmp_path / "b.tar.gz")), stdout=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(room)},
    )  # fmt: skip
    assert process.stdout is not None
    unpacked = Path(process.stdout.readline().strip())
    assert unpacked.is_dir()

    process.send_signal(number)

    assert process.wait(60) == -number
    assert list(room.iterdir()) == []
    process.stdout.close()
