"""Packed trees of small files are unpacked to the same bytes."""

from pathlib import Path

import pytest

from tests.ttar import pack, unpack


@pytest.mark.parametrize(
    "content", ["", "one line\n", "no newline", "\n", "two\n\nlines", "zero\0bytes\0", "Path: x\nLines: 3\n"]
)
def test_a_file_is_packed_and_unpacked_to_the_same_bytes(tmp_path: Path, content: str) -> None:
    """With what a line cannot show: zero bytes, and no newline at the end."""
    (tmp_path / "from" / "proc").mkdir(parents=True)
    (tmp_path / "from" / "proc" / "stat").write_bytes(content.encode())
    (tmp_path / "from" / "exe").symlink_to("/usr/bin/python3")
    unpack(pack(tmp_path / "from"), tmp_path / "to")

    assert (tmp_path / "to" / "proc" / "stat").read_bytes() == content.encode()
    assert (tmp_path / "to" / "exe").readlink() == Path("/usr/bin/python3")
