"""The datagrams of Kineto's on-demand protocol, byte by byte."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfwatch.captures.kineto.protocol import HEADER, Ask, Poll, answer, configuration, parse, registered


def poll(kinds: int, pids: tuple[int, ...]) -> bytes:
    """A question as Kineto asks it."""
    payload = struct.pack("<iiq", kinds, len(pids), 0) + struct.pack(f"<{len(pids)}i", *pids)
    return HEADER.pack(len(payload), b"req") + payload


def test_poll_of_a_process_names_it_and_its_ancestors() -> None:
    """The 84-byte question that torch 2.13 asks from seven processes down; no trace is taken in it."""
    datagram = poll(3, (901, 800, 700, 600, 500, 400, 300))

    assert len(datagram) == 84
    assert parse(datagram) == Poll(idle=True, pids=(901, 800, 700, 600, 500, 400, 300))


def test_process_in_which_a_trace_is_taken_is_not_idle() -> None:
    """It asks for events only."""
    assert parse(poll(1, (7,))) == Poll(idle=False, pids=(7,))


def test_registration_gives_the_pid() -> None:
    """The older way in which a process says that it is there."""
    payload = struct.pack("<iiq", 0, 4242, 0)

    assert parse(HEADER.pack(16, b"ctxt") + payload) == 4242


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"x" * 39,
        HEADER.pack(16, b"req"),
        HEADER.pack(99, b"req") + bytes(16),
        HEADER.pack(16, b"req") + struct.pack("<iiq", 3, 2**31 - 1, 0),
        HEADER.pack(16, b"nonsense") + bytes(16),
    ],
)
def test_nonsense_is_nothing(datagram: bytes) -> None:
    """A datagram that is cut, lies about its length or is of another kind asks for nothing."""
    assert parse(datagram) is None


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(datagram: bytes) -> None:
    """Whatever arrives is a poll, a registration, or nothing."""
    parse(datagram)


def test_answers_carry_their_length() -> None:
    """Nothing to do is a header alone."""
    assert answer() == HEADER.pack(0, b"req")
    assert answer("A=b\n") == HEADER.pack(4, b"req") + b"A=b\n"
    assert registered(3) == HEADER.pack(4, b"ctxt") + b"\x03\x00\x00\x00"


def test_window_of_steps() -> None:
    """Iterations count from Kineto's own; there is no warm-up."""
    text = configuration(Ask("/t/trace.json", start_step=913, steps=5, switches=("stacks", "shapes")))

    assert text.splitlines() == [
        "ACTIVITIES_LOG_FILE=/t/trace.json",
        "PROFILE_START_ITERATION=913",
        "PROFILE_START_ITERATION_ROUNDUP=1",
        "ACTIVITIES_ITERATIONS=5",
        "ACTIVITIES_WARMUP_ITERATIONS=0",
        "ACTIVITIES_WARMUP_PERIOD_SECS=0",
        "PROFILE_WITH_STACK=true",
        "PROFILE_REPORT_INPUT_SHAPES=true",
    ]


def test_window_of_time_begins_at_the_same_moment_everywhere() -> None:
    """Milliseconds since 1970: the same number goes to every rank."""
    text = configuration(Ask("/t/trace.json", start_unix_ms=1790857026000, duration_ms=500))

    assert "PROFILE_START_TIME=1790857026000\nACTIVITIES_DURATION_MSECS=500\n" in text


@pytest.mark.parametrize("name", ["/t/a=b.json", "/t/a#b.json", "/t/a\nKEY=1"])
def test_path_that_would_break_the_line_is_refused(name: str) -> None:
    """Kineto splits at = and #: a folder of such a name cannot be said to it."""
    with pytest.raises(ValueError, match="cannot be said"):
        configuration(Ask(name))
