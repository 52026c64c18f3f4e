"""What a source line and the loop around it call."""

import os
from pathlib import Path

import pytest

from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.guest import Recorded
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import GATHERED, PERTURBED, SourceLine
from perfwatch_probes.source import SourceProbe, describe

PROGRAM = """\
import time
def wait_for_file(path):
    while not os.path.exists(path):
        time.sleep(1)
def poll(work):
    while True:
        if work.is_completed():
            break
        time.sleep(0.1)
def serve(queue):
    while 1:
        item = queue.get(timeout=5)
        model(item).sum()
def read(sock):
    while True:
        data = sock.recv(10)
        if not data:
            return data
def train(loader):
    for batch in loader:
        loss = model(
            batch,
        )
        loss.backward(); opt.step()
        def hook():
            dist.barrier()
def converge(x):
    while x > 1:
        x = x / 2
def nested():
    while True:
        for one in range(3):
            break
        inner()
for epoch in range(3): train(DataLoader(make("x")).get().items())
"""


def at(line: int) -> SourceLine:
    """The reading for a line of PROGRAM."""
    return describe(PROGRAM, "/t.py", line)


@pytest.mark.parametrize(
    ("line", "calls", "loop_calls"),
    [
        (4, ("time.sleep",), ("os.path.exists", "time.sleep")),
        (9, ("time.sleep",), ("work.is_completed", "time.sleep")),
        (12, ("queue.get",), ("queue.get", "sum", "model")),
        (16, ("sock.recv",), ("sock.recv",)),
        (20, (), ("model", "loss.backward", "opt.step")),
        (22, ("model",), ("model", "loss.backward", "opt.step")),
        (24, ("loss.backward", "opt.step"), ("model", "loss.backward", "opt.step")),
        (26, ("dist.barrier",), ()),
        (29, (), ()),
        (34, ("inner",), ("range", "inner")),
    ],
    ids=lambda value: str(value),
)
def test_a_line_is_described_with_its_innermost_loop(
    line: int, calls: tuple[str, ...], loop_calls: tuple[str, ...]
) -> None:
    """What a nested function calls is not called in the loop."""
    reading = at(line)

    assert (reading.calls, reading.loop_calls) == (calls, loop_calls)


def test_a_call_on_the_result_of_a_call_keeps_its_own_name_only() -> None:
    """What it is called on is not a name."""
    assert at(35).calls == ("range", "train", "items", "get", "DataLoader", "make")


RETRIES = """\
def handled(call):
    for attempt in range(5):
        try:
            return call(attempt)
        except OSError:
            time.sleep(2 ** attempt)
def after(url):
    while True:
        try:
            data = load(url)
            break
        except OSError as error:
            log.warning(error)
        time.sleep(1)
def load(url):
    return parse(urlopen(url))
def not_after(work):
    while work:
        try:
            work.pop()
        except IndexError:
            pass
        time.sleep(1)
def paced():
    while True:
        try:
            step()
            if done:
                break
        except KeyboardInterrupt:
            save()
        time.sleep(1)
for step in itertools.count():
    for n, one in enumerate(itertools.cycle(shards)):
        use(one)
for one in count:
    use(one)
"""


@pytest.mark.parametrize(
    ("line", "retried"),
    [
        (6, ("call",)),
        (13, ("load", "parse", "urlopen")),
        (14, ("load", "parse", "urlopen")),
        (4, ()),
        (23, ()),
        (32, ()),
    ],
)
def test_line_that_follows_on_a_failed_try_tells_what_was_tried(line: int, retried: tuple[str, ...]) -> None:
    """In a handler, or behind a ``try`` that leaves the loop when it succeeds; any other sleep is only a pause."""
    assert set(describe(RETRIES, "/t.py", line).retried_calls) == set(retried)


TAKES = """
def take(ring):
    while True:
        try:
            return convert(ring.popleft())
        except {absent}:
            time.sleep(0.002)
"""


@pytest.mark.parametrize(
    ("absent", "retried"),
    [
        ("IndexError", set()),
        ("(queue.Empty, KeyError)", set()),
        ("(IndexError, OSError)", {"convert", "ring.popleft"}),
        ("Exception", {"convert", "ring.popleft"}),
    ],
)
def test_an_empty_container_is_no_failure(absent: str, retried: set[str]) -> None:
    """Who takes from a ring and rests while nothing is in it retries nothing."""
    assert set(describe(TAKES.format(absent=absent), "/t.py", 7).retried_calls) == retried


ASKS = """
def refused(link, wait):
    while True:
        link.request("GET", "/tile")
        reply = link.getresponse()
        if reply.status == 200:
            return reply.read()
        log.warning("status %s", reply.status)
        time.sleep(wait)
        wait *= 2
def polite(session, urls):
    for url in urls:
        page = session.get(url)
        if page is None:
            break
        store.append(page)
        time.sleep(1)
def generous(session):
    while True:
        page = session.get(URL)
        if not page:
            return
        yield 1
        time.sleep(1)
def counted(session, limit):
    while True:
        session.get(URL)
        if limit.reached():
            return
        time.sleep(1)
"""


@pytest.mark.parametrize(
    ("line", "asked"), [(9, ("link.request", "link.getresponse")), (7, ()), (17, ()), (24, ()), (30, ())]
)
def test_sleep_after_an_answer_that_did_not_end_the_loop_tells_what_was_asked(
    line: int, asked: tuple[str, ...]
) -> None:
    """Nothing but waiting may come after the test: who uses the answer, or hands something out, rests on purpose."""
    assert describe(ASKS, "/t.py", line).asked_calls == asked


def test_for_loop_that_never_ends_counts_as_while() -> None:
    """Over ``itertools.count()`` or ``cycle()``, even enumerated; the name alone says nothing."""
    assert describe(RETRIES, "/t.py", 35).loops == ("while", "while")
    assert describe(RETRIES, "/t.py", 37).loops == ("for",)


def test_a_line_that_is_not_there_is_refused() -> None:
    """The file has changed since it was loaded."""
    with pytest.raises(ValueError, match="no line 99"):
        at(99)


@pytest.mark.live
def test_a_file_is_read_in_the_child(child: KillableChild, tmp_path: Path) -> None:
    """The text of the line is stripped."""
    (tmp_path / "t.py").write_text(PROGRAM)

    [reading] = SourceProbe(Recorded(child)).look(os.getpid(), str(tmp_path / "t.py"), 4)

    assert reading.text == "time.sleep(1)"
    assert reading.file == str(tmp_path / "t.py")


@pytest.mark.live
@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("<string>", None, "not a file"),
        ("gone.py", None, "No such file"),
        ("broken.py", b"def f(:\n", "cannot be used"),
        ("large.py", b"#" * (2**21 + 1), "2 MiB"),
        ("binary.py", b"\0\0\n", "cannot be used"),
        ("deep.py", b"x = " + b"(" * 90 + b"-" * 100_000 + b"1" + b")" * 90, "cannot be used"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_is_no_use_is_unavailable(
    child: KillableChild, tmp_path: Path, name: str, content: bytes | None, reason: str
) -> None:
    """Whatever the job has put there, the answer is a reason."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    path = name if name.startswith("<") else str(tmp_path / name)

    with pytest.raises(Unavailable, match=reason):
        SourceProbe(Recorded(child)).look(os.getpid(), path, 1)


@pytest.mark.live
def test_a_fifo_of_that_name_does_not_hold_the_reader(child: KillableChild, tmp_path: Path) -> None:
    """Only regular files are read."""
    os.mkfifo(tmp_path / "t.py")

    with pytest.raises(Unavailable, match="not a file of the kind"):
        SourceProbe(Recorded(child)).look(os.getpid(), str(tmp_path / "t.py"), 1)


PROFILED = """\
def fit(loader, path):
    with profile(activities=[CPU], record_shapes=secret()) as recorder, open(path, "w") as log:
        for batch in loader:
            with torch.no_grad():
                step(batch)
        def later():
            upload(log)
"""


@pytest.mark.parametrize(
    ("line", "within"),
    [
        (1, ()),
        (3, ("profile(activities, record_shapes)", "open(*, *)")),
        (5, ("torch.no_grad()", "profile(activities, record_shapes)", "open(*, *)")),
        (7, ()),
    ],
)
def test_what_a_line_stands_within_is_told_without_the_values(line: int, within: tuple[str, ...]) -> None:
    """Innermost first, of its own function: a function that is only defined there runs elsewhere."""
    assert describe(PROFILED, "train.py", line).within == within


def test_the_files_that_a_loop_names_are_told() -> None:
    """Whole names that it tests; neither an address, which may hold a secret, nor a part of a name, nor any other text."""
    text = """
while not os.path.exists("/data/best.pt") and not Path("DONE.txt").is_file():
    exists("https://user:secret@store/a.bin"); isfile(f"{folder}/last.pt"); writer.add_scalar("wait/seconds", 1)
    time.sleep(1)
"""
    reading = describe(text, "/home/user/train.py", 4)

    assert reading.loop_files == ("/data/best.pt", "DONE.txt")


@pytest.mark.parametrize(
    ("call", "unnamed"),
    [
        ("actions['train'](batch)", True),
        ("pick(batch)(batch)", True),
        ("total += batch.sum()", False),
        ("rows[0].append(batch)", False),
    ],
)
def test_a_call_of_what_has_no_name_is_not_taken_for_none(call: str, unnamed: bool) -> None:
    """An element of a table, or what a call returns, may be anything."""
    assert describe(f"for batch in loader:\n    {call}\n", "train.py", 1).calls_unnamed is unnamed


def test_what_a_function_gives_to_others_is_told_for_each_of_its_lines() -> None:
    """Outside of the innermost loop as well, and through the functions of the same file; a module's own lines say nothing of each other."""
    text = """
class Miner:
    def run(self):
        while True:
            jobs = self.wanted.get()
            for job in as_completed(jobs):
                pairs.extend(job.result())
            self.tell(pairs)

    def tell(self, pairs):
        self.done.put(pairs)

ready.set()
"""
    assert describe(text, "/home/user/train.py", 6).gives == ("self.wanted.get", "self.done.put")
    assert describe(text, "/home/user/train.py", 13).gives == ()


@pytest.mark.parametrize("mark", ["\f", "\x0b", "\x1c", "\x85", "\u2028"])
def test_lines_are_counted_as_python_counts_them(mark: str) -> None:
    """A form feed or a separator of Unicode's ends a line of text, but none of a program."""
    reading = describe(f"# {mark}\ntime.sleep(1)\n", "/t.py", 2)

    assert (reading.text, reading.calls) == ("time.sleep(1)", ("time.sleep",))


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
def test_lines_may_end_as_elsewhere(ending: str) -> None:
    """To Python they are the same."""
    reading = describe(f"import time{ending}time.sleep(1){ending}", "/t.py", 2)

    assert (reading.text, reading.calls) == ("time.sleep(1)", ("time.sleep",))


SUMS = """
def importance(model, loader):
    total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for x, y in loader:
        model.zero_grad()
        loss(model(x), y).backward()
        for n, p in model.named_parameters():
            USED
    return total
"""
TRIES = """
def search(policy, centre, scores):
    for k in range(16):
        DRAWN
        for sign in (1, -1):
            WRITES
            scores.append(play(policy))

def write(policy, values):
    for p in policy.parameters():
        p.data.copy_(values)
"""


@pytest.mark.parametrize(
    ("used", "parameters"),
    [
        ("total[n] += p.grad ** 2", GATHERED),
        ("total[n] += p.grad ** 2; print(n)", GATHERED),
        ("total[n] += p.grad; ledger.settle()", ""),  # what that does was not read
        ("total[n].addcmul_(p.grad, p.grad)", GATHERED),
        ("p.data -= 0.1 * p.grad", ""),  # it trains, by hand
        ("p.sub_(0.1 * p.grad)", ""),
        ("total[n] = p - 0.1 * p.grad", ""),  # it may
        ("total[n] = dist.all_reduce(p.grad)", ""),  # the update may be elsewhere
        ("apply_gradient(p, total.append(p.grad))", ""),
        ("total[n] += p ** 2", ""),
    ],
)
def test_a_loop_that_only_adds_gradients_up_is_told_from_one_that_may_make_updates_of_them(
    used: str, parameters: str
) -> None:
    """Nothing else tells the Fisher information from training without an optimizer of torch's."""
    assert describe(SUMS.replace("USED", used), "/t.py", 6).parameters == parameters


def test_gradients_that_a_loop_around_uses_are_no_mere_sum() -> None:
    """They are accumulated over the parts of a batch."""
    text = SUMS.replace("USED", "total[n] += p.grad").replace("    for x, y", "    for step in steps:\n     for x, y")
    text = text.replace("    return total", "     optimizer.step()")

    assert describe(text, "/t.py", 7).parameters == ""


@pytest.mark.parametrize(
    ("drawn", "writes", "parameters"),
    [
        ("noise = torch.randn(9)", "vector_to_parameters(centre + sign * noise, policy.parameters())", PERTURBED),
        ("noise = rng.standard_normal(9)", "write(policy, centre + sign * noise)", PERTURBED),
        ("noise = levels[k]", "write(policy, centre * noise)", ""),  # how much a model bears is measured so
        ("noise = torch.randn(9)", "policy.eval()", ""),
        ("score(noise=torch.randn(9)).backward()", "write(policy, centre)", ""),
    ],
)
def test_a_loop_that_writes_noise_into_parameters_tries_them_out(drawn: str, writes: str, parameters: str) -> None:
    """Evolution strategies make no gradients."""
    text = TRIES.replace("DRAWN", drawn).replace("WRITES", writes)

    assert describe(text, "/t.py", 7).parameters == parameters


@pytest.mark.parametrize(
    ("head", "body", "traces"),
    [
        ("def look(frame, event, arg):", "seen.append(frame.f_lineno)", True),
        ("def look(self, where, what, value):", "self.seen.append(where.f_code)", True),
        ("def look(frame, event, arg):", "seen.append(frame.mean())", False),  # of a video
        ("def look(frame):", "seen.append(frame.f_lineno)", False),
    ],
)
def test_a_function_for_tracing_is_told_by_its_three_arguments_and_what_it_asks_of_the_first(
    head: str, body: str, traces: bool
) -> None:
    """As ``sys.settrace`` has it."""
    assert describe(f"{head}\n    {body}\n", "/t.py", 2).traces is traces
