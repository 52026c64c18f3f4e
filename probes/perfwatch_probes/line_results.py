"""What becomes of what a statement gets: used, dropped, or only filled and handed on.

A loop that takes a batch out of a queue reads it. One that asks for a free buffer writes into it, and one that waits for its last
upload to be done drops what that returns: neither waits for data.
"""

import ast
from collections.abc import Iterable, Iterator

from perfwatch_probes.loop_kinds import Loop, dotted
from perfwatch_probes.readings import DROPPED, FILLED

_HANDS_ON = frozenset("put put_nowait send send_bytes submit append appendleft apply_async release".split())


def result_of(loop: Loop, line: int) -> str:
    """Of the innermost statement on a line of a loop: ``DROPPED``, ``FILLED``; empty where it is used, or not known."""
    statement = _statement(loop.body, line)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return DROPPED
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ""
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or not isinstance(statement.value, ast.Call):
        return ""
    uses = list(_uses(loop, target.id))
    return FILLED if uses and all(uses) else ""


def _statement(body: Iterable[ast.stmt], line: int) -> ast.stmt | None:
    """The innermost statement on a line; the last one where several stand there, for that is where a short ``if`` waits."""
    here = [one for one in body if one.lineno <= line <= (one.end_lineno or one.lineno)]
    if not here:
        return None
    inner = _statement((child for child in ast.iter_child_nodes(here[-1]) if isinstance(child, ast.stmt)), line)
    return inner or here[-1]


def _uses(loop: Loop, name: str) -> Iterator[bool]:
    """Of each place where a loop reads a name: whether what it holds is only written to there, or handed on as it is."""
    parents = {child: node for node in ast.walk(loop) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(loop):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            yield _only_written(node, parents)


def _only_written(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    outer = parents[node]
    while isinstance(outer, ast.Subscript | ast.Attribute) and outer.value is node:
        node, outer = outer, parents[outer]
    if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
        return True
    if not isinstance(outer, ast.Call):
        return False
    if outer.func is node:  # torch's methods that write in place end so
        return isinstance(node, ast.Attribute) and node.attr.endswith("_") and not node.attr.endswith("__")
    return node in outer.args and dotted(outer.func).rpartition(".")[2] in _HANDS_ON
