"""Which way a thread waits on what it has open: for somebody to take what it sends, to send, or to type.

A full connection is silent the other way round.
"""

from shlex import quote

from perfwatch.triage.waits.node import End
from perfwatch_probes.readings import Descriptor, Socket, Wait

WRITABLE, READABLE = 4, 1  # of poll(2)
STDIN, OWN_TERMINALS = 0, ("/dev/tty", "/dev/console")
OPENING = ("SYN_SENT", "LISTEN")  # where poll's "writable" means that the connection is there


def gives(wait: Wait, fd: int) -> bool:
    """Whether a thread waits to hand something over on a descriptor, and not to get something there."""
    polled = any(one.fd == fd and one.events & WRITABLE and not one.events & READABLE for one in wait.polled)
    return wait.kind in ("send", "write") or polled


def is_typed_at(terminal: Descriptor) -> bool:
    """Whether somebody may sit at a terminal: it is stdin, or the process' controlling one (``/dev/tty`` is another name of that).

    Others are serial lines to a device, or the terminals that programs make for those that they talk to.
    """
    return terminal.fd == STDIN or terminal.target in OWN_TERMINALS or terminal.controlling is True


def takes(socket: Socket) -> str:
    """What is waited for of the other end."""
    return f"{socket.peer or f'the other end of a {socket.family} socket'} to take what it sends"


def sends(end: End) -> Socket | None:
    """The connection on which the end of a chain waits to send; None where it waits for something else."""
    socket = end.descriptor.socket if end.descriptor is not None else None
    if socket is None or end.descriptor is None or end.node.wait is None or socket.state in OPENING:
        return None
    return socket if gives(end.node.wait, end.descriptor.fd) else None


def untaken(socket: Socket) -> str:
    """What the kernel counts on such a connection."""
    parts = [] if socket.send_queue_bytes is None else [f"{socket.send_queue_bytes:,} bytes not taken (Send-Q)"]
    parts += [f"sent again {socket.retransmits} times"] if socket.retransmits else []
    parts += [] if socket.sent_ago_seconds is None else [f"last sent {socket.sent_ago_seconds:.1f} s ago"]
    return ", ".join(parts)


def ask(end: End) -> tuple[str, ...]:
    """How to look at the other end of a connection on which a thread waits."""
    socket = end.descriptor.socket if end.descriptor is not None else None
    if end.kind != "network" or socket is None:
        return ()
    if socket.state == "LISTEN":  # there is nobody yet at the other end; one of a file is called as its program likes
        return (f"ss -{'xlp' if socket.family == 'unix' else 'tlnp'} | grep -F {quote(socket.local)}",)
    return (f"ss -tnp | grep {quote(socket.peer)}",) if socket.peer else ()
