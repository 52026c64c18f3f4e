"""Under which tests a loop makes a call: of a flag, of a count, of whether something is finite, of another value.

A loop that trains and evaluates tests a flag before its backward pass, one that accumulates gradients a count before its step.
"""

import ast
from collections.abc import Iterator, Sequence

from perfwatch_probes.loop_kinds import Loop, dotted
from perfwatch_probes.readings import COUNT, FINITE, FLAG, VALUE

_FINITE = frozenset({"isfinite", "isnan", "isinf", "is_finite", "is_nan"})
_COUNTERS = frozenset({"enumerate", "range", "trange"})
_ORDERS = ast.Lt | ast.LtE | ast.Gt | ast.GtE
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
_CUTS = ast.Continue | ast.Break | ast.Return | ast.Raise
_Try = ast.Try | ast.With | ast.AsyncWith | ast.For | ast.AsyncFor | ast.While


def tests_before(loop: Loop, called: str, line: int) -> tuple[str, ...]:
    """Kinds of the tests between a line and a call of that name in its loop, outermost first; one that leaves the turn counts."""
    return tuple(kind for at, kind in _tests(loop.body, called, _counters(loop)) if at > line)


def comes_with(loop: Loop, line: int, *called: str) -> bool:
    """True if no turn comes to this line without these calls: all stand outside of any test, and no test between cuts a turn short."""
    body = list(_outside_of_tests(loop.body))
    here = [at for at, one in enumerate(body) if one.lineno <= line <= (one.end_lineno or one.lineno)]
    there = [next((at for at, one in enumerate(body) if _is_plain(one) and _calls(one, name)), None) for name in called]
    if not here or not _is_plain(body[here[0]]) or None in there:
        return False
    places = [here[0], *(at for at in there if at is not None)]
    between = body[min(places) : max(places)]
    return not any(isinstance(node, _CUTS) for one in between for node in ast.walk(one))


def _outside_of_tests(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for one in body:
        if isinstance(one, ast.With | ast.AsyncWith):
            yield from _outside_of_tests(one.body)
        else:
            yield one


def _is_plain(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign)


def _tests(body: Sequence[ast.stmt], called: str, counters: frozenset[str]) -> list[tuple[int, str]]:
    left: list[tuple[int, str]] = []
    for one in body:
        if isinstance(one, ast.If):
            inside = next((part for part in (one.body, one.orelse) if any(_calls(node, called) for node in part)), None)
            if inside is not None:
                return [*left, (one.lineno, _kind(one.test, counters)), *_tests(inside, called, counters)]
            if isinstance(one.body[-1], ast.Continue):
                left.append((one.lineno, _kind(one.test, counters)))
        elif _calls(one, called):
            return [*left, *_tests(one.body, called, counters)] if isinstance(one, _Try) else left
    return []


def _calls(node: ast.AST, called: str) -> bool:
    if isinstance(node, _Scope):
        return False
    here = isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == called
    return here or any(_calls(child, called) for child in ast.iter_child_nodes(node))


def _kind(test: ast.expr, counters: frozenset[str]) -> str:
    parts = list(ast.walk(test))
    named = {dotted(one) for one in parts if isinstance(one, ast.Name | ast.Attribute)}
    if any(name.rpartition(".")[2] in _FINITE for name in named):
        return FINITE
    if named & counters or any(isinstance(one, ast.Mod) for one in parts):
        return COUNT
    ordered = any(isinstance(order, _ORDERS) for one in parts if isinstance(one, ast.Compare) for order in one.ops)
    return VALUE if ordered or any(isinstance(one, ast.Call) for one in parts) else FLAG


def _counters(loop: Loop) -> frozenset[str]:
    """Names that a loop counts in: by ``+= 1``, or as the target of an ``enumerate`` or a ``range``."""
    found = {
        dotted(one.target)
        for one in ast.walk(loop)
        if isinstance(one, ast.AugAssign) and isinstance(one.op, ast.Add) and isinstance(one.value, ast.Constant)
    }
    if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and dotted(loop.iter.func) in _COUNTERS:
        target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
        found.add(dotted(target))
    return frozenset(found)
