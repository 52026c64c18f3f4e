"""The phase of a training thread, from the words in its stack: one phase per sample."""

from perfwatch.triage.questions import awaits_data, tags
from perfwatch_probes.readings import Stack

# Phase, and the tags of which one is enough. The first that fits counts: a collective inside the backward pass is a collective.
_BY_TAGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("checkpoint", ("save",)),
    ("compilation", ("compile", "autotune")),
    ("garbage collection", ("gc",)),
    ("output", ("log", "tracker")),
    ("collective", ("collective", "rendezvous")),
    ("optimizer", ("optimizer", "clip", "scaler")),
    ("backward", ("backward",)),
    ("data in the training thread", ("fetch", "collate", "loader")),
    ("wait for the GPU", ("device_sync",)),
    ("forward", ("forward",)),
)
WAIT_FOR_DATA, OTHER = "wait for data", "other"
PHASES = (WAIT_FOR_DATA, *(name for name, _ in _BY_TAGS), OTHER)


def phase_of(stack: Stack) -> str:
    """The phase of one sample of the training thread."""
    if awaits_data(stack):
        return WAIT_FOR_DATA
    found = tags(stack)
    return next((name for name, wanted in _BY_TAGS if not found.isdisjoint(wanted)), OTHER)
