"""Readings about process groups: what NCCL's RAS service and torch's flight recorder say of a job's collectives.

``perfwatch_probes.readings`` says what all readings share. Counts are launches on the host, not kernels that have ended.
"""

import msgspec

from perfwatch_probes.job_readings import Frame
from perfwatch_probes.reading import Reading

UNANSWERED = "did not answer"  # ends the reason of a ProbeCall: RAS is there, and its thread does not come to run
BATCH = "coalesced"  # the entry that ends a batch of sends; of the calls in it no recorder tells whether they are over


class GroupMember(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank of a communicator. ``rank`` counts within it; ``pid`` is as we see it where ``local``, else its own host's."""

    rank: int
    pid: int | None = None
    host: str = ""
    gpu: int | None = None  # the CUDA device number inside that process
    local: bool = False  # a process of the job that is watched here
    state: str = "running"  # running starting finalizing aborted unresponsive dead missing unknown
    error: int = 0  # ncclResult_t of an asynchronous error
    launched: dict[str, int] = {}  # by kind ("collective" before NCCL 2.26), how many of them; empty: not told


class Communicator(Reading, frozen=True, kw_only=True):
    """One NCCL communicator as RAS describes it in one answer. Source: NCCL's RAS service (2.24 and newer).

    source: ``json`` (2.28.7 and newer: every rank and count) or ``text`` (only what RAS itself found odd).
    """

    communicator: str  # NCCL's hash, hexadecimal
    size: int
    members: tuple[GroupMember, ...] = ()
    missing: int = 0  # ranks that RAS heard nothing from
    timeouts: int = 0  # of RAS itself while it asked around
    nccl_version: str = ""
    source: str = "json"


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One collective (or point-to-point) call in a flight recorder."""

    sequence: int  # collective_seq_id, or p2p_seq_id of a point-to-point call
    order: int  # record_id: the order in which this rank made its calls, over all its groups
    name: str  # "all_reduce"
    point_to_point: bool = False
    input_sizes: str = ""  # "16x512,8" (at most 200 characters)
    output_sizes: str = ""
    input_elements: int = 0
    output_elements: int = 0
    dtypes: str = ""
    state: str = ""  # scheduled started completed
    frames: tuple[Frame, ...] = ()  # the program's own, innermost first


class RecordedGroup(Reading, frozen=True, kw_only=True):
    """One process group in one rank's flight recorder. Source: a dump that we asked for, or that the rank wrote by itself.

    The sequence numbers are those of the group's collectives; None: this version does not tell.
    """

    pid: int  # of the rank's process, as we see it
    rank: int  # in the whole job
    group: str  # torch's name for it: the same in every rank
    description: str = ""
    members: tuple[int, ...] = ()  # ranks of the whole job
    enqueued: int | None = None
    completed: int | None = None
    operations: tuple[Operation, ...] = ()  # the newest, oldest first
    origin: str = "pipe"  # pipe (asked for) or file (written by the job itself, on a timeout)
    version: str = ""
    written_ago_seconds: float = 0.0
