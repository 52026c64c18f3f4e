"""Stacks in the files of a session: each frame and each stack is written once per file, later lines name it by its number.

``{"stack":2,"frames":[[3,"forward","/app/net.py",9],1]}`` defines stack 2: frame 3, defined here, called by frame 1, defined
before. A reading ``{"at":...,"reading":{"type":"Stack",...},"stack":2}`` has its frames. A line with ``frames`` in its reading,
as every earlier version wrote it, is valid too. Numbers belong to one file, so each file can be read on its own.

``StackNumbers`` is for a writer, ``StackTable`` for a reader, ``whole_lines`` for thinning, which writes a file again.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from perfwatch.recording.damage import DAMAGED, Implausible, check_numbers
from perfwatch_probes.bounds import MOST_STACK_FRAMES
from perfwatch_probes.readings import Frame

Frames = tuple[Frame, ...]
T = TypeVar("T", Frame, Frames)

DEFINITION = b'{"stack":'  # how a line that defines a stack begins, and no other
MOST_SHARED = 2**16  # stacks, and frames, that are remembered in order to share them; a job has some thousand


class _NumberedFrame(msgspec.Struct, frozen=True, array_like=True):
    number: int
    function: str
    file: str
    line: int


class _Definition(msgspec.Struct, frozen=True):
    stack: int
    frames: tuple[int | _NumberedFrame, ...]


class _RawDefinition(msgspec.Struct, frozen=True):
    stack: int
    frames: tuple[int | tuple[msgspec.Raw, ...], ...]


_DEFINITION = msgspec.json.Decoder(_Definition)
_RAW_DEFINITION = msgspec.json.Decoder(_RawDefinition)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_NUMBER = msgspec.json.Decoder(int)


class SharedStacks:
    """Equal frames and equal stacks as one object each, over all files of a session."""

    def __init__(self) -> None:
        self._frames: dict[Frame, Frame] = {}
        self._stacks: dict[Frames, Frames] = {}

    def frame(self, frame: Frame) -> Frame:
        """The first frame that was equal to this one."""
        return _shared(self._frames, frame)

    def stack(self, frames: Frames) -> Frames:
        """The first stack that was equal to this one, of shared frames."""
        known = self._stacks.get(frames)
        return known if known is not None else _shared(self._stacks, tuple(map(self.frame, frames)))


def _shared(known: dict[T, T], one: T) -> T:
    if len(known) >= MOST_SHARED:  # sharing saves memory, nothing depends on it
        known.clear()
    return known.setdefault(one, one)


class StackTable:
    """The frames and stacks that one file has defined so far, by number.

    Args:
        shared: of all files of the session.
    """

    def __init__(self, shared: SharedStacks) -> None:
        self._shared = shared
        self._frames: dict[int, Frame] = {}
        self._stacks: dict[int, Frames] = {}

    def define(self, line: bytes) -> None:
        """Take in a line that begins with ``DEFINITION``. Raises what ``DAMAGED`` names; frames that it defines stay."""
        definition = _DEFINITION.decode(line)
        check_numbers(line)
        if len(definition.frames) > MOST_STACK_FRAMES:
            raise Implausible(f"stack {definition.stack} has more than {MOST_STACK_FRAMES} frames")
        for one in definition.frames:
            if isinstance(one, _NumberedFrame):
                self._frames[one.number] = self._shared.frame(Frame(one.function, one.file, one.line))
        numbers = (one if isinstance(one, int) else one.number for one in definition.frames)
        try:
            self._stacks[definition.stack] = self._shared.stack(tuple(self._frames[number] for number in numbers))
        except KeyError as missing:
            raise Implausible(f"stack {definition.stack} names frame {missing}, which the file has not") from None

    def stack(self, number: int) -> Frames:
        """The frames of a stack, innermost first. Raises Implausible for a number that the file has not defined."""
        frames = self._stacks.get(number)
        if frames is None:
            raise Implausible(f"a reading names stack {number}, which the file has not")
        return frames

    def whole(self, frames: Frames) -> Frames:
        """The frames of a reading that has its own, shared with equal ones."""
        return self._shared.stack(frames)

    def clear(self) -> None:
        """Forget everything: the file is complete and has been read."""
        self._frames.clear()
        self._stacks.clear()


class StackNumbers:
    """The numbers of the frames and stacks that one file holds. What is written grows with it, so it is bounded by the file."""

    def __init__(self) -> None:
        self._frames: dict[bytes, int] = {}
        self._stacks: dict[bytes, int] = {}
        self._last_frame = self._last_stack = 0

    def stored(self, line: bytes) -> bytes:
        """What to write for a line: itself if it holds no stack, else a reference, behind the definition if that is new.

        Once returned the definition counts as written; ``forget`` takes that back.
        """
        if b'"frames":[' not in line:
            return line
        try:
            record = _FIELDS.decode(line)
            reading = _FIELDS.decode(record["reading"])
            frames = bytes(reading.pop("frames"))
            if bytes(reading["type"]) != b'"Stack"' or "stack" in record:
                return line
            number = self._stacks.get(frames)
            definition = b"" if number is not None else self._define(frames)
        except (*DAMAGED, KeyError):
            return line
        record["reading"] = msgspec.Raw(msgspec.json.encode(reading))
        record["stack"] = msgspec.Raw(b"%d" % self._stacks[frames])
        return definition + msgspec.json.encode(record) + b"\n"

    def forget(self) -> None:
        """What was returned last could not be written: define everything anew, under new numbers."""
        self._frames.clear()
        self._stacks.clear()

    def _define(self, frames: bytes) -> bytes:
        """The line that defines a new stack, and its new frames. Raises Implausible for one that is better written whole."""
        whole = [bytes(frame) for frame in _ITEMS.decode(frames)]
        if len(whole) > MOST_STACK_FRAMES or not all(frame.startswith(b'["') for frame in whole):
            raise Implausible("no stack that a table can hold")
        parts = []
        for frame in whole:
            number = self._frames.get(frame)
            if number is None:
                self._last_frame += 1
                self._frames[frame] = self._last_frame
                parts.append(b"[%d,%s" % (self._last_frame, frame[1:]))
            else:
                parts.append(b"%d" % number)
        self._last_stack += 1
        self._stacks[frames] = self._last_stack
        return b'%s%d,"frames":[%s]}\n' % (DEFINITION, self._last_stack, b",".join(parts))


def whole_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The readings of a file with their frames in them, each a line on its own; those whose stack is not known are left out."""
    frames: dict[int, bytes] = {}
    stacks: dict[int, msgspec.Raw] = {}
    for line in lines:
        try:
            if line.startswith(DEFINITION):
                definition = _RAW_DEFINITION.decode(line)
                numbers = []
                for one in definition.frames:
                    if isinstance(one, int):
                        numbers.append(one)
                    else:
                        numbers.append(_NUMBER.decode(one[0]))
                        frames[numbers[-1]] = b"[%s]" % b",".join(map(bytes, one[1:]))
                stacks[definition.stack] = msgspec.Raw(b"[%s]" % b",".join(frames[number] for number in numbers))
                continue
            record = _FIELDS.decode(line)
            number = record.pop("stack", None)
            if number is not None:
                reading = _FIELDS.decode(record["reading"])
                reading["frames"] = stacks[_NUMBER.decode(number)]
                record["reading"] = msgspec.Raw(msgspec.json.encode(reading))
                line = msgspec.json.encode(record) + b"\n"
        except (*DAMAGED, KeyError, IndexError):
            continue
        yield line
