"""How a snapshot travels: short lines of text that survive login banners, labels of srun and anything else that prints.

Each line reads ``perfwatch-snapshot NONCE INDEX COUNT CHECK DATA``: a part of the compressed JSON (zlib, base64), with the CRC of
the whole. All that is not such a line is noise. The nonce is made by the process that asks, so that an old answer is none.

Everything that arrives is untrusted: lengths are bounded before anything is unpacked, and the JSON is checked against the
types of ``perfwatch.fleet.merge.snapshot`` before it is used.
"""

import base64
import binascii
import math
import re
import zlib
from collections.abc import Iterable

import msgspec

from perfwatch.fleet.merge.snapshot import SCHEMA, Snapshot
from perfwatch.recording.damage import DAMAGED, check_numbers
from perfwatch.recording.recording import check_ranks
from perfwatch_probes.bounds import LATEST_CREATED, is_rank, most_values

MARK = "perfwatch-snapshot"
DATA_CHARACTERS = 768  # of a line: srun cuts longer ones than 1,024
LONGEST_ANSWER_BYTES = 8 * 2**20  # of one host, as it travels
LONGEST_SNAPSHOT_BYTES = 64 * 2**20  # unpacked: 16 jobs of 4 MiB
MOST_SNAPSHOT_VALUES = 2**23  # a real one has one in 17 bytes
NONCE = re.compile(r"[0-9a-f]{8,32}")
_LINE = re.compile(
    rf"{MARK} ([0-9a-f]{{8,32}}) (\d{{1,6}}) (\d{{1,6}}) ([0-9a-f]{{8}}) ([A-Za-z0-9+/=]{{1,{DATA_CHARACTERS}}})"
)
_DECODER = msgspec.json.Decoder(Snapshot)


class Garbled(Exception):
    """What a host answered is no snapshot; the message says what is wrong with it."""


def lines(snapshot: Snapshot, nonce: str) -> list[str]:
    """A snapshot as lines, without line ends."""
    packed = zlib.compress(msgspec.json.encode(snapshot), 6)
    check = f"{zlib.crc32(packed):08x}"
    text = base64.b64encode(packed).decode()
    parts = [text[first : first + DATA_CHARACTERS] for first in range(0, len(text), DATA_CHARACTERS)]
    return [f"{MARK} {nonce} {index} {len(parts)} {check} {part}" for index, part in enumerate(parts)]


def read(answer: Iterable[str], nonce: str) -> Snapshot:
    """The snapshot in what a host printed, whatever else is in it.

    Raises Garbled: nothing of the kind is there, a part is missing, it is too large, or it is not what it says.
    """
    parts: dict[int, str] = {}
    total, check, length = 0, "", 0
    for line in answer:
        found = _LINE.search(line)
        if found is None or found[1] != nonce:
            continue
        total, check = int(found[3]), found[4]
        length += len(found[5])
        if length > LONGEST_ANSWER_BYTES:
            raise Garbled(f"its answer is longer than {LONGEST_ANSWER_BYTES // 2**20} MiB")
        parts[int(found[2])] = found[5]
    if not total:
        raise Garbled("its answer holds no snapshot")
    if set(parts) != set(range(total)):
        raise Garbled(f"its answer is torn: {len(parts)} of {total} parts arrived")
    return _unpacked("".join(parts[index] for index in range(total)), check)


def _unpacked(text: str, check: str) -> Snapshot:
    try:
        packed = base64.b64decode(text, validate=True)
        if f"{zlib.crc32(packed):08x}" != check:
            raise Garbled("its answer was damaged on the way")
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(packed, LONGEST_SNAPSHOT_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise Garbled(f"its answer cannot be unpacked: {error}") from None
    if unpacker.unconsumed_tail:
        raise Garbled(f"its answer unpacks to more than {LONGEST_SNAPSHOT_BYTES // 2**20} MiB")
    if most_values(data) > MOST_SNAPSHOT_VALUES:
        raise Garbled(f"its answer holds more than {MOST_SNAPSHOT_VALUES} values")
    try:
        snapshot = _DECODER.decode(data)
        check_numbers(data)
        for view in snapshot.jobs:
            for record in view.records:
                check_ranks(record.reading)
    except DAMAGED as error:
        raise Garbled(f"its answer is not what a snapshot is: {error}") from None
    _check(snapshot)
    return snapshot


def _check(snapshot: Snapshot) -> None:
    """What the types alone do not say."""
    if snapshot.schema != SCHEMA:
        raise Garbled(f"it speaks {snapshot.schema[:40]}, this perfwatch {SCHEMA}: use one version on all hosts")
    created = [snapshot.made, *(view.session.created for view in snapshot.jobs)]
    if not all(0.0 <= at < LATEST_CREATED for at in created):
        raise Garbled("its clock shows a time that cannot be")
    for view in snapshot.jobs:
        times = [view.end, *(record.at for record in view.records)]
        if any(not math.isfinite(at) or at < 0.0 or at > view.end + 1.0 for at in times):
            raise Garbled("its readings lie outside of the time that it looked")
        if not all(map(is_rank, (*view.ranks, view.identity.world_size))):
            raise Garbled("it names ranks that cannot be")
