"""What a thread that backs off and tries again looks like, by the text of its line and of the loop around it."""

from perfwatch.triage.case import Case
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.code import calling_line, names
from perfwatch.triage.words.frames import tags
from perfwatch_probes.readings import Stack

CONNECTING = frozenset("connect create_connection urlopen urlretrieve request recv fetch download".split())
ASKING = frozenset("get post put head send execute query read open call".split())  # of something remote, by its name:
# Tries that only ask whether something is there yet, or take a lock: their waits have other names.
ASKS = frozenset(
    "get get_nowait put put_nowait acquire poll wait join recv accept select open flock lockf fcntl mkdir symlink link touch"
    " stat result print info debug warning error exception format str int len sleep pop popleft popitem next".split()
)
LONGEST_REST_SECONDS = 3600.0  # before the next try: servers that limit their clients ask for minutes (Retry-After)
REMOTE = ("request", "session", "client", "http", "conn", "s3", "bucket", "redis", "cursor", "service", "api", "sock")


def next_try_seconds(case: Case, node: Node) -> float | None:
    """In how many seconds a thread that rests tries again what has failed, as the kernel knows; None where it does not, or in hours."""
    left = node.wait.remaining_seconds if node.wait is not None and node.wait.kind == "sleep" else None
    if left is None or left > LONGEST_REST_SECONDS or node.stack is None or not retries(case, node.stack):
        return None
    return max(0.0, left - (case.at - node.thread_at))


def retries(case: Case, stack: Stack) -> bool:
    """True if a stack sleeps because what its loop tries has failed, or because the answer was a refusal."""
    if "retry" in tags(stack):
        return True
    line = calling_line(case.history, stack)
    if line is None or "sleep" not in names(line.calls):
        return False
    # A loop that asks and then rests may only be polite: the text must say that the sleep follows on a try that failed.
    return bool(names(line.retried_calls) - ASKS) or any(_connects(call) for call in line.asked_calls)


def _connects(call: str) -> bool:
    owner, _, name = call.rpartition(".")
    return name in CONNECTING or (name in ASKING and any(word in owner.lower() for word in REMOTE))
