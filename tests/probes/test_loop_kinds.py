"""Which loops come to their end by themselves, by their text alone."""

import pytest

from perfwatch_probes.readings import DROPPED, FILLED
from perfwatch_probes.source import describe


def kinds(text: str, line: int) -> tuple[str, ...]:
    """Of the loops around a line."""
    return describe(text, "/app/train.py", line).loops


@pytest.mark.parametrize(
    "loop",
    [
        "while t < end:\n    x = f(x)\n    t += dt\n",
        "while t < end and not done:\n    x = f(x)\n    t = t + dt\n",
        "while left > 0:\n    x = f(x)\n    left -= 1\n",
        "while len(out) < n:\n    x = f(x)\n    out.append(x)\n",
        "while self.step < self.most:\n    x = f(x)\n    self.step += 1\n",
        "for _ in range(3):\n    x = f(x)\n",
        "while time.time() - begun < 200:\n    x = f(x)\n",
        "while time.monotonic() < self.until:\n    x = f(x)\n",
        "while time.monotonic() < until and error > bound:\n    error = f(x)\n",
        "while now() < until:\n    x = f(x)\n\ndef now():\n    return time.monotonic() - START\n",
    ],
)
def test_a_loop_that_counts_comes_to_its_end(loop: str) -> None:
    """Each turn takes the tested counter on, whatever else it does; the clock goes on by itself."""
    assert kinds(loop, 2) == ("for",)


@pytest.mark.parametrize(
    "loop",
    [
        "while True:\n    x = f(x)\n",
        "while error > bound:\n    error = f(x)\n",
        "while scores[i % n] < best:\n    x = 1\n    i += 1\n",  # what is compared is another thing
        "while t < end:\n    if not f(x): continue\n    t += dt\n",
        "while t < end:\n    x = f(x)\n    if x: t += dt\n",
        "while len(batch) < n:\n    if fits(x): batch.append(x)\n    x = draw()\n",
        "while t < end:\n    x = f(x)\n    t += dt\n    if x: t = 0\n",
        "while not done and ready():\n    x = f(x)\n    i += 1\n",
        "for x in itertools.count():\n    x = f(x)\n",
        "while time.time() - last < 200:\n    last = f(time.time())\n",
        "while not done() and time.time() < until:\n    rest()\n",
        "while clock.time != noon:\n    rest()\n",
        "while due() < until:\n    x = f(x)\n\ndef due():\n    log(time.monotonic())\n    return queue.head()\n",
        "while time.time() < until or error > bound:\n    error = f(x)\n",
    ],
)
def test_one_that_waits_for_a_condition_may_not(loop: str) -> None:
    """Nothing in it takes a counter on each time."""
    assert kinds(loop, 2) == ("while",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def rows():\n    while True:\n        x = read()\n        yield x\n", True),
        ("def rows():\n    while True:\n        x = read()\n        def one():\n            yield x\n", False),
    ],
)
def test_a_loop_that_yields_hands_something_out(text: str, expected: bool) -> None:
    """A function that is made in it does not count."""
    assert describe(text, "/app/data.py", 3).hands_out is expected


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ("while True:\n    x = f(x)\n", True),
        ("while 1:\n    for y in x:\n        if y: break\n", True),
        ("while True:\n    x = f(x)\n    def g():\n        return x\n", True),
        ("while True:\n    x = f(x)\n    if x: break\n", False),
        ("while True:\n    for y in x:\n        y = f(y)\n    else:\n        break\n", False),
        ("while True:\n    x = f(x)\n    if x: return x\n", False),
        ("while True:\n    x = f(x)\n    if x: raise ValueError(x)\n", False),
        ("while True:\n    yield f(x)\n", False),
        ("while x:\n    x = f(x)\n", False),
        ("for x in y:\n    x = f(x)\n", False),
    ],
)
def test_a_loop_is_endless_where_nothing_in_its_text_leaves_it(loop: str, expected: bool) -> None:
    """A break of a loop within it is that one's, but in its ``else``."""
    body = "".join(f"    {line}\n" for line in loop.splitlines())

    assert describe("def run(x):\n" + body, "/app/data.py", 3).endless is expected


@pytest.mark.parametrize(
    ("loop", "nears"),
    [
        ("while len(batch) < n:\n    x = draw()\n    if fits(x):\n        note(x)\n        batch.append(x)\n", (4, 5)),
        ("while len(batch) < n:\n    x = draw()\n    if fits(x): batch.append(x)\n", ()),  # the line asks as well
        ("while t < end:\n    x = f(x)\n    if x > tol:\n        h /= 2\n        continue\n    t += h\n", (6,)),
        (
            "while left and t < end:\n    with lock:\n        if f(x):\n            raise E\n        t += h\n    g(x)\n",
            (5,),
        ),
        ("while t < end:\n    if f(x):\n        t += h\n        return t\n    g(x)\n", (3,)),
        ("while not found:\n    if f(x):\n        out.append(x)\n    g(x)\n", ()),  # what is tested is another thing
        ("while True:\n    if f(x):\n        out.append(x)\n    g(x)\n", ()),
    ],
)
def test_a_branch_that_takes_the_tested_counter_on_brings_a_loop_nearer_to_its_end(
    loop: str, nears: tuple[int, ...]
) -> None:
    """Who is met in it is not in vain; who only ever asks may be."""
    lines = range(1, loop.count("\n") + 1)

    assert tuple(line for line in lines if describe(loop, "/app/train.py", line).nears_its_end) == nears


@pytest.mark.parametrize(
    ("loop", "filled"),
    [
        ("while memory.filled < n:\n    x = f(x)\n    memory.add(x)\n", True),
        ("while len(memory) < n:\n    x = f(x)\n    if x: memory.add(x)\n", True),
        ("while not memory.is_full():\n    x = f(x)\n    memory.add(x)\n", True),
        ("while error > bound:\n    x = f(x)\n    log.add(x)\n", False),
        ("while True:\n    memory.add(f(x))\n    x = 1\n", False),
    ],
)
def test_a_loop_that_calls_a_method_of_what_it_tests_fills_it_perhaps(loop: str, filled: bool) -> None:
    """A replay memory, a set of words: whether it really grows is seen elsewhere."""
    assert describe(loop, "/app/train.py", 2).fills is filled


@pytest.mark.parametrize(
    ("loop", "only"),
    [
        ("while flag[0] == 0:\n    pass\n", True),
        ("while not self.ready.value:\n    time.sleep(0.01)\n", True),
        ("while not event.is_set():\n    print('still waiting')\n", True),
        ("while True:\n    if flag[0] or left.value:\n        break\n    time.sleep(0.01)\n", True),
        ("while not done:\n    pass\n", False),  # a plain name is nobody else's
        ("while flag[0] == 0:\n    x = f(x)\n", False),
        ("while flag[0] == 0:\n    solve(x)\n", False),
        ("while flag[0] == 0:\n    if late():\n        solve(x)\n", False),
        ("for x in xs:\n    time.sleep(flag[0])\n", False),
    ],
)
def test_a_loop_that_changes_nothing_only_tests_what_others_change(loop: str, only: bool) -> None:
    """It rests, tells, or gives up, and does nothing else."""
    assert describe(loop, "/app/train.py", 2).only_tests is only


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("def beat():\n    while True:\n        time.sleep(5)\n        n = 1\n", False),
        ("def beat():\n    while True:\n        time.sleep(5)\n        state['ready'] = True\n", True),
        ("def beat(self):\n    while True:\n        time.sleep(5)\n        self.ready = True\n", True),
        ("def beat():\n    while True:\n        print(1, file=pipe)\n", True),
        ("def beat():\n    while True:\n        print(1, file=sys.stderr)\n", False),
        ("def beat():\n    global n\n    while True:\n        n += 1\n", True),
        ("if True:\n    while True:\n        n += 1\n", True),  # names of a module are everybody's
    ],
)
def test_a_loop_that_assigns_to_what_others_see_may_let_them_go_on(text: str, shared: bool) -> None:
    """No call tells of it; nor of where a line is printed to."""
    assert describe(text, "/app/train.py", text.count("\n")).stores is shared


FLAGGED = """\
for x in loader:
    loss = model(x)
    if train:
        loss.backward()
        optimizer.step()
"""
ACCUMULATED = """\
for number, x in enumerate(loader):
    loss = model(x)
    loss.backward()
    if number == last or number > 3:
        optimizer.step()
"""
COUNTED = """\
while True:
    if batch is None:
        continue
    loss = model(x)
    loss.backward(); done += 1
    if done < self.rounds:
        continue
    optimizer.step()
"""
GUARDED = """\
for x in loader:
    loss = model(x)
    if not torch.isfinite(loss):
        continue
    with autocast():
        if loss < limit:
            loss.backward()
    if self.every.due(x):
        optimizer.step()
"""
PLAIN = """\
for x in loader:
    def closure():
        if train:
            model(x).backward()
    optimizer.step(closure)
"""


@pytest.mark.parametrize(
    ("program", "line", "passes_if", "steps_if"),
    [
        (FLAGGED, 2, ("flag",), ("flag",)),
        (FLAGGED, 4, (), ()),  # who stands at it has passed the test
        (ACCUMULATED, 2, (), ("count",)),
        (COUNTED, 4, (), ("count",)),
        (GUARDED, 2, ("finite", "value"), ("finite", "value")),
        (PLAIN, 5, (), ()),
    ],
)
def test_the_tests_between_a_line_and_what_it_makes_are_told_by_their_kind(
    program: str, line: int, passes_if: tuple[str, ...], steps_if: tuple[str, ...]
) -> None:
    """A flag, a count, whether something is finite, another value."""
    found = describe(program, "/t.py", line)

    assert (found.passes_if, found.steps_if) == (passes_if, steps_if)


LOOP = """\
for step in range(steps):
    loss = model(x)
    {line}
    {after}
"""


@pytest.mark.parametrize(
    ("line", "after", "result"),
    [
        ("pending.result()", "loss.backward()", DROPPED),
        ("if pending is not None: pending.result()", "loss.backward()", DROPPED),
        ("buf = free.get()", "buf[0].copy_(loss); full.put(buf)", FILLED),
        ("buf = free.get()", "buf.loss[step] = loss; full.put(buf)", FILLED),
        ("batch = ready.get()", "loss = model(batch)", ""),
        ("batch = ready.get()", "batch.x.add_(1); loss = model(batch)", ""),
        ("batch = ready.get()", "slot.copy_(batch)", ""),
        ("batch = ready.get()", "x, y = batch", ""),
        ("batch = ready.get()", "for one in batch: model(one)", ""),
        ("batch = ready.get()", "loss = model(batch['x'])", ""),
        ("batch = ready.get()", "batch.pin_memory()", ""),
        ("x, y = ready.get()", "pass", ""),
        ("self.batch = ready.get()", "pass", ""),
        ("count += 1", "pass", ""),
    ],
)
def test_what_a_loop_does_with_what_a_line_gets_is_read_from_its_text(line: str, after: str, result: str) -> None:
    """A value is used as soon as any reading of its name does anything but write into it or hand it on."""
    assert describe(LOOP.format(line=line, after=after), "/j/train.py", 3).result == result


def test_outside_of_a_loop_nothing_is_known() -> None:
    """A function may return what it gets to whoever called it."""
    assert describe("def take():\n    queue.get()\n", "/j/train.py", 2).result == ""


@pytest.mark.parametrize(
    ("turn", "each"),
    [
        ("loss.backward()\n    o.step()\n    sleep(1)", True),
        ("with scope():\n        loss.backward()\n    o.step()\n    sleep(1)", True),
        ("if paused:\n        sleep(1)\n        continue\n    loss.backward()\n    o.step()", False),
        ("if paused:\n        sleep(1)\n    else:\n        loss.backward()\n        o.step()", False),
        ("if full:\n        loss.backward()\n        o.step()\n    sleep(1)", False),
        ("sleep(1)\n    if empty: continue\n    loss.backward()\n    o.step()", False),
        ("try:\n        loss.backward()\n        o.step()\n    except E:\n        sleep(1)", False),
        ("loss.backward()\n    sleep(1)", True),
    ],
)
def test_a_turn_makes_a_step_where_no_test_stands_before_it(turn: str, each: bool) -> None:
    """Then who sleeps there trains; one that is paused, or waits for enough, may never come to it."""
    text = f"while True:\n    {turn}\n"
    line = next(number for number, one in enumerate(text.splitlines(), 1) if "sleep" in one)

    assert describe(text, "/app/train.py", line).steps_each_turn is each
