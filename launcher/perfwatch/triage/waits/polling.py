"""A thread that sleeps a little, looks at a file, and sleeps again: told by the source line and the loop around it."""

import re
from collections import Counter
from collections.abc import Collection

from perfwatch.triage.history import History, Seen
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.code import line_of, names, tries_for_a_lock
from perfwatch.triage.words.frames import any_tag
from perfwatch.verdict import TO_APPEAR
from perfwatch_probes import readings as r

SUPERVISION = frozenset("is_alive done poll running ready exitcode returncode alive active_children".split())
MOST_ASKED = 6  # different calls in a loop that only asks and sleeps
WORK_CALLS = frozenset(
    "backward step zero_grad next forward fit train train_step training_step put send write append extend".split()
)
WORK_WAITS = frozenset({"wait", "synchronize"})
LONGEST_PAUSE_SECONDS = 60.0  # nobody who polls sleeps longer in between
FILE_NAME = re.compile(r"\w\.[A-Za-z]\w{0,7}$")  # a name with an ending, in a folder that is not told
MOST_NEAR = 3
OPENING = -1  # the number under which a path is kept that has no descriptor yet
SOUGHT = -2  # that of a path for which a loop looks
# fs/pipe.c, where an open of a FIFO waits; the only wait channel that is trusted, as a hint
FIFO_WAIT = "wait_for_partner"


def polls_a_file(history: History, node: Node) -> bool:
    """True if the loop around the sleeping line tests for a file or a lock file."""
    source = line_of(history, node.frame)
    left = node.wait.remaining_seconds if node.wait is not None else None
    if source is None or (left is not None and left > LONGEST_PAUSE_SECONDS):
        return False
    called = names(source.loop_calls)
    return bool(called & r.FILE_TESTS) or (tries_for_a_lock(source) and "sleep" in called)


def locked(history: History, node: Node) -> tuple[r.Descriptor, tuple[int, ...]] | None:
    """A locked file and the processes that hold it, for a thread that naps in a call of its line, which itself does not sleep.

    A library that sleeps and tries again (sqlite's busy handler) shows no blocked call and no frame of its own. Its own process may hold
    the lock as well, if it has the file open twice: two connections to one database.
    """
    source = line_of(history, node.frame)
    if source is None or "sleep" in names(source.calls) or node.motion.distinct > 1:
        return None
    seen = (history.latest(r.Descriptor, *key) for key in history.of(r.Descriptor, node.pid))
    files = [one.reading for one in seen if one is not None and one.reading.kind == "file"]
    by_others = [(file, held) for file in files if (held := tuple(pid for pid in file.lock_holders if pid != node.pid))]
    opened = Counter(file.inode for file in files)
    by_itself = [(file, (node.pid,)) for file in files if node.pid in file.lock_holders and opened[file.inode] > 1]
    return next(iter([*by_others, *by_itself]), None)


def only_asks(history: History, node: Node) -> bool:
    """True if the loop around the sleeping line waits for a condition and does little else."""
    source = line_of(history, node.frame)
    if source is None or source.loops[:1] != ("while",):
        return False
    called = names(source.loop_calls)
    return len(called) <= MOST_ASKED and not called & WORK_CALLS


def supervises(history: History, node: Node) -> bool:
    """True if the loop around the sleeping line asks after threads or processes that work for this one."""
    source = line_of(history, node.frame)
    return source is not None and bool(names(source.loop_calls) & SUPERVISION)


def path_of(history: History, node: Node) -> str:
    """The path that it waits for, from the blocked call, its loop's text or the variable that the loop tests; "" when unknown.

    The file of a lock is named after what it guards, and its name is made in the lock itself: a path in the variables of whoever
    takes it is near it, and not it. Of several paths nobody knows which it is, and one that is there is not what is to appear.
    """
    if node.wait is not None and node.wait.path:
        return node.wait.path
    source = line_of(history, node.frame)
    named = source.loop_files if source is not None else ()
    if not named and takes_a_lock(history, node):
        return ""
    texts = _files((*named, *_texts(history, node, None if named or source is None else source.tested_names)))
    whole = [text for text in texts if text in named and FILE_NAME.search(text)]
    told = [*whole, *(text for text in texts if "/" in text)] or [text for text in texts if FILE_NAME.search(text)]
    path = told[0] if named or len(told) == 1 else ""
    return "" if source is not None and source.awaits == r.APPEARS and is_there(history, node.pid, path) else path


def in_words(history: History, node: Node, path: str) -> str:
    """For what it waits whose path this is ("": not known), as far as is known whether it is there."""
    if not path and takes_a_lock(history, node):
        return "a lock file to be released"
    source = line_of(history, node.frame)
    waits = source.awaits if source is not None else ""
    there = is_there(history, node.pid, path)
    if waits == r.GOES:
        return f"{path or 'a file'} to be removed"
    if waits == r.APPEARS or there is False:
        return f"{path or 'a file'}{TO_APPEAR}"
    return f"{path} to change or to be removed" if there else f"{path or 'a file'} to appear or to be released"


def sought(history: History, pid: int, path: str) -> Seen[r.Descriptor] | None:
    """What was last seen of a path for which a process looks; None before anybody did."""
    seen = history.latest(r.Descriptor, pid, SOUGHT)
    return seen if seen is not None and path and seen.reading.target == path else None


def is_there(history: History, pid: int, path: str) -> bool | None:
    """True if such a path leads to something; None where that is not known."""
    seen = sought(history, pid, path)
    return None if seen is None else seen.reading.kind != "missing"


def _files(texts: tuple[str, ...]) -> list[str]:
    """These without the folders: beside the path of a file its folder is often in a variable of its own, and that one is there."""
    return [
        text for text in texts if not any(other.startswith(f"{text.rstrip('/')}/") for other in texts if "/" in text)
    ]


def takes_a_lock(history: History, node: Node) -> bool:
    """True if it is a lock's file that the loop around the sleeping line tries for, by its own text or by the library that it is in."""
    source = line_of(history, node.frame)
    return any_tag(node.inner, "file_lock") or (source is not None and tries_for_a_lock(source))


def texts_near(history: History, node: Node) -> tuple[str, ...]:
    """Words in the variables of its frames, where none of them is known to be the path: they may be part of it."""
    return tuple(text for text in _files(_texts(history, node)) if len(text) > 1)[:MOST_NEAR]


def _texts(history: History, node: Node, tested: Collection[str] | None = None) -> tuple[str, ...]:
    """Texts in the variables of the newest stack of which they were read; only of variables with these names, where names are known."""
    stacks = (one.reading for one in reversed(history.series(r.Stack, node.pid, node.tid)))
    stack = next((one for one in stacks if one.texts), None)
    if stack is None or tested is None or not stack.text_names:
        return stack.texts if stack is not None else ()
    return tuple(text for text, name in zip(stack.texts, stack.text_names, strict=True) if name in tested)


def opened(history: History, node: Node) -> r.Descriptor | None:
    """What is known of a path that is being opened or looked at: read under the number -1, for it has no descriptor yet."""
    seen = history.latest(r.Descriptor, node.pid, OPENING)
    same = seen is not None and node.wait is not None and seen.reading.target == node.wait.path
    return seen.reading if seen is not None and same else None


def is_fifo(node: Node, file: r.Descriptor | None) -> bool:
    """True if a path that is being opened is a FIFO: it was looked at, or the kernel waits for the other end of one."""
    if file is not None and file.kind == "fifo":
        return True
    return node.thread is not None and (node.thread.wchan or "").startswith(FIFO_WAIT)


def waits_for_work(history: History, node: Node) -> bool:
    """True if the program's own line calls ``wait`` on something without Python frames, as the handle of a collective is."""
    source = line_of(history, node.frame)
    in_line = source is not None and bool(names(source.calls) & WORK_WAITS)
    return in_line and not node.inner and node.stack is not None and len(node.stack.frames) > 0
