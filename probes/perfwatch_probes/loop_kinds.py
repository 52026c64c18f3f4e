"""Which loops of a program come to their end by themselves, by their text: those that count, and those that wait for nothing.

And of a ``while`` that need not: by what would a turn bring it nearer to its end, if it comes to that?
"""

import ast
from collections.abc import Collection, Iterator

Loop = ast.For | ast.AsyncFor | ast.While
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
_ORDERS = ast.Lt | ast.LtE | ast.Gt | ast.GtE
_STEPS = ast.Add | ast.Sub
_RESTS = frozenset("sleep sched_yield print debug info warning".split())
_CLOCKS = frozenset("time time_ns monotonic monotonic_ns perf_counter perf_counter_ns now utcnow".split())
MOST_OF_A_CLOCK = 2  # statements, the docstring with them
_CUTS = ast.Continue | ast.Break | ast.Return | ast.Raise


def comes_to_its_end(loop: Loop, clocks: Collection[str] = ()) -> bool:
    """True if a loop counts: a ``for``, but over something without an end, or a ``while`` that counts up, or goes by the clock.

    clocks: names of the program's own functions that tell the time.
    """
    if not isinstance(loop, ast.While):
        return not _counts_for_ever(loop)
    return _counts(loop) or _goes_by_the_clock(loop, _CLOCKS.union(clocks))


def clocks(tree: ast.AST) -> frozenset[str]:
    """The functions of a file that only tell the time: ``def uptime(): return time.monotonic() - START``."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return frozenset(
        one.name for one in functions if _tells_the_time(one.body[-1]) and len(one.body) <= MOST_OF_A_CLOCK
    )


def _tells_the_time(statement: ast.stmt) -> bool:
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return isinstance(statement, ast.Return) and any(dotted(one.func).rpartition(".")[2] in _CLOCKS for one in calls)


def hands_out(loop: Loop) -> bool:
    """True if a loop yields: the caller is given something each time, and asks again."""
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in _within(loop))


def is_endless(loop: Loop) -> bool:
    """True if nothing in its text leaves a loop: ``while True`` without a break of its own, a return, a raise or a yield."""
    if not isinstance(loop, ast.While) or not (isinstance(loop.test, ast.Constant) and loop.test.value):
        return False
    leaves = ast.Return | ast.Raise | ast.Yield | ast.YieldFrom
    return not any(isinstance(node, leaves) for node in _within(loop)) and not any(map(_breaks, loop.body))


def _breaks(node: ast.AST) -> bool:
    """True if a break of the loop around it stands in a statement: those of loops within it are theirs, but in their ``else``."""
    if isinstance(node, ast.Break):
        return True
    parts = node.orelse if isinstance(node, Loop) else ast.iter_child_nodes(node)
    return not isinstance(node, _Scope) and any(map(_breaks, parts))


def _counts(loop: ast.While) -> bool:
    """True if each turn takes the tested counter on: ``while i < n: ...; i += 1``, or ``while len(out) < n: ...; out.append(x)``.

    A turn that may be cut short before (``continue``, ``try``), or a counter that is set anew, proves nothing.
    """
    tested = _tested(loop)
    for statement in loop.body:
        counted = _counted(statement)
        if counted in tested:
            return sum(counted == other for other in map(_set_by, _within(loop))) <= 1
        if any(isinstance(node, ast.Continue) for node in (statement, *_within(statement))):
            return False
    return False


def _goes_by_the_clock(loop: ast.While, clocks: Collection[str]) -> bool:
    """True if it goes on until a moment at most: ``while time.time() - begun < seconds``, and as long as what it computes says so.

    One that asks another task as well may get no answer, and one that sets what the clock is compared with begins anew: neither counts.
    """
    both = loop.test.values if isinstance(loop.test, ast.BoolOp) and isinstance(loop.test.op, ast.And) else [loop.test]
    timed = [one for one in both if _until_a_moment(loop, one, clocks)]
    asked = (node for one in both if one not in timed for node in ast.walk(one))
    return bool(timed) and not any(isinstance(node, ast.Call) for node in asked)


def _until_a_moment(loop: ast.While, test: ast.expr, clocks: Collection[str]) -> bool:
    calls = (node for node in ast.walk(test) if isinstance(node, ast.Call))
    ordered = isinstance(test, ast.Compare) and all(isinstance(one, _ORDERS) for one in test.ops)
    if not ordered or not any(dotted(call.func).rpartition(".")[2] in clocks for call in calls):
        return False
    named = {dotted(node) for node in ast.walk(test) if isinstance(node, ast.Name | ast.Attribute)}
    return named.isdisjoint(map(_set_by, _within(loop)))


def nears_its_end(loop: Loop, line: int) -> bool:
    """True if a turn that comes to this line takes the tested counter on: it stands in a branch that does, at that or before it.

    ``while len(out) < n: if good(x): note(x); out.append(x)``: a thread that is met at ``note`` has found one more.
    """
    return isinstance(loop, ast.While) and _leads_on(loop.body, line, _tested(loop))


def fills(loop: Loop) -> bool:
    """True if a loop calls a method of the very thing that it tests: ``while memory.filled < n: memory.add(x)``."""
    if not isinstance(loop, ast.While):
        return False
    asked = {dotted(node.func).rpartition(".")[0] for node in ast.walk(loop.test) if isinstance(node, ast.Call)}
    things = {part for name in {*_tested(loop), *asked} for part in (name, name.rpartition(".")[0]) if part}
    calls = (node for statement in loop.body for node in (statement, *_within(statement)) if isinstance(node, ast.Call))
    return any(dotted(call.func).rpartition(".")[0] in things for call in calls)


def only_tests(loop: Loop) -> bool:
    """True if a turn changes nothing, so that only others can end the loop: ``while flag[0] == 0: time.sleep(0.01)``.

    What is tested is an item, an attribute or the answer of a call; a plain name belongs to the loop alone. The body may rest, tell, or
    give up.
    """
    if not isinstance(loop, ast.While) or not all(_leaves_be(one) for one in loop.body):
        return False
    tests = [loop.test, *(one.test for one in loop.body if isinstance(one, ast.If))]
    return any(isinstance(node, ast.Subscript | ast.Attribute | ast.Call) for test in tests for node in ast.walk(test))


_STREAMS = {"sys.stdout", "sys.stderr"}


def stores(loop: Loop, scope: ast.AST) -> bool:
    """True if a turn leaves something that other threads may look at: an item, an attribute, a name that is not the function's own, a
    line in a file.
    """
    declared = {name for one in ast.walk(scope) if isinstance(one, ast.Global | ast.Nonlocal) for name in one.names}
    parts = list(_within(loop))
    assigned = [node for node in parts if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)]
    files = [
        dotted(word.value)
        for node in parts
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg == "file"
    ]
    own = all(isinstance(node, ast.Name) and node.id not in declared for node in assigned)
    return not own or (bool(assigned) and isinstance(scope, ast.Module)) or not set(files) <= _STREAMS


def _leaves_be(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):
        return all(map(_leaves_be, (*statement.body, *statement.orelse)))
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return dotted(statement.value.func).rpartition(".")[2] in _RESTS
    return isinstance(statement, ast.Pass | _CUTS) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _tested(loop: ast.While) -> set[str]:
    """What the condition compares; of several that must hold, what any of them does."""
    both = loop.test.values if isinstance(loop.test, ast.BoolOp) and isinstance(loop.test.op, ast.And) else [loop.test]
    return {name for one in both for name in _compared(one)}


def _leads_on(block: list[ast.stmt], line: int, tested: set[str]) -> bool:
    """True if a statement of the block takes a tested counter on, from that of the line on and before any that may cut the turn short."""
    at = next((at for at, one in enumerate(block) if one.lineno <= line <= (one.end_lineno or one.lineno)), None)
    if at is None:
        return False
    for statement in block[at:]:
        if _counted(statement) in tested:
            return True
        if any(isinstance(node, _CUTS) for node in (statement, *_within(statement))):
            break
    here = block[at]
    header = getattr(here, "test", getattr(here, "iter", None))
    if isinstance(here, _Scope) or (header is not None and line <= header.end_lineno):
        return False  # ``if good(x): out.append(x)``: who is met there may only ask
    return any(_leads_on(getattr(here, name, []), line, tested) for name in ("body", "orelse", "finalbody"))


def _compared(test: ast.expr) -> Iterator[str]:
    """The names that a comparison orders; ``len(x)`` of one counts as that one."""
    if isinstance(test, ast.Compare) and all(isinstance(one, _ORDERS) for one in test.ops):
        for side in (test.left, *test.comparators):
            inner = side.args[0] if isinstance(side, ast.Call) and dotted(side.func) == "len" and side.args else side
            if name := dotted(inner):
                yield name


def _counted(statement: ast.stmt) -> str:
    """The name that a statement takes one step on; "" for any other."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, _STEPS):
        return dotted(statement.target)
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
        name = dotted(statement.targets[0])
        return name if isinstance(statement.value.op, _STEPS) and dotted(statement.value.left) == name else ""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        receiver, _, called = dotted(statement.value.func).rpartition(".")
        return receiver if called == "append" else ""
    return ""


def _set_by(node: ast.AST) -> str:
    if isinstance(node, ast.Assign):
        return dotted(node.targets[0])
    return dotted(node.target) if isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr) else ""


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """What stands in it, but for functions that are made there."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _Scope):
            yield child
            yield from _within(child)


def _counts_for_ever(loop: Loop) -> bool:
    """A ``for`` over something that has no end: ``itertools.count()``."""
    over = getattr(loop, "iter", None)
    if isinstance(over, ast.Call) and dotted(over.func) in ("enumerate", "zip") and over.args:
        over = over.args[0]
    return isinstance(over, ast.Call) and dotted(over.func).rpartition(".")[2] in ("count", "cycle")


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of a callee; what is not a name (a call, a subscript) is left out: ``x().get`` is ``get``."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base and not isinstance(node.value, ast.Call) else node.attr
    return node.id if isinstance(node, ast.Name) else ""
