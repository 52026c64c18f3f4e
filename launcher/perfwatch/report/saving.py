"""A file that the user asked for: for its owner alone, and whole or not at all."""

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

from perfwatch.errors import UsageError
from perfwatch.recording.session import PRIVATE_FILE
from perfwatch.text import say


@contextmanager
def whole(target: Path) -> Iterator[BinaryIO]:
    """A file to write into, which gets its name when all of it is written; an older one of the name is replaced.

    Raises:
        UsageError: the place does not take it.
    """
    unfinished = target.with_name(f".{target.name[-100:]}.{os.getpid()}")
    try:
        with open(unfinished, "xb", opener=lambda path, flags: os.open(path, flags, PRIVATE_FILE)) as file:
            yield file
        unfinished.replace(target)
    except OSError as error:
        if error.filename is not None and Path(error.filename) != unfinished:
            raise  # not of this place: of what is read meanwhile
        raise UsageError(f"{target} could not be written: {error.strerror}", "give another place: -o FILE") from None
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def save(target: Path, made: str | bytes) -> None:
    """Write a file in one step. Raises UsageError as ``whole`` does."""
    with whole(target) as file:
        file.write(made if isinstance(made, bytes) else made.encode("utf-8", "replace"))


def print_all(made: str | bytes, stream: TextIO) -> None:
    """Print the same instead; characters that the stream's encoding lacks are replaced."""
    encoding = stream.encoding or "utf-8"
    stream.flush()
    stream.buffer.write(made if isinstance(made, bytes) else made.encode(encoding, "replace"))
    stream.buffer.flush()


def announce(target: Path) -> None:
    """Say where a file goes that the user gave no place for, before it is made; also where it could be committed by mistake."""
    whole_path = target.absolute()
    checkout = next((str(one) for one in whole_path.parents if os.path.exists(one / ".git")), "")
    also = f", in the git checkout {checkout}; another place: -o FILE" if checkout else ""
    say(sys.stderr, f"writing {whole_path}{also}")
