"""The solver of the wait graph, on small graphs: each sentence of the model is one test."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfwatch.triage.graph.model import (
    NOT_SILENT,
    Basis,
    Fate,
    Key,
    Kind,
    Needs,
    Prospect,
    Resource,
    Role,
    Silence,
    Source,
    Task,
    WaitGraph,
    along,
    at_least,
    seen_through,
)

SETTLED, OPEN, DUE, LIVE = Prospect.SETTLED, Prospect.OPEN, Prospect.DUE, Prospect.LIVE
WORKS = Fate(LIVE, works=1.0, why="it runs")
BEATS = Fate(LIVE, works=0.01, why="a heartbeat")
ENDED = Fate(SETTLED, why="it has ended")


def key(name: str) -> Key:
    """Of a task."""
    return ("task", name)


def lock(name: str, needs: Needs = Needs.ANY, complete: bool = True, basis: Basis = Basis.KERNEL) -> Resource:
    """Something to wait for."""
    return Resource(Kind.LOCK, (name,), needs, complete, why="" if complete else "unseen", basis=basis)


class Graph(WaitGraph):
    """Written by hand."""

    def leaf(self, name: str, fate: Fate) -> "Graph":
        """A task that does not wait."""
        self.tasks[key(name)] = Task(key(name), fate)
        return self

    def wait(self, name: str, *resources: Resource, member: str = "") -> "Graph":
        """A task that waits."""
        self.tasks[key(name)] = Task(key(name), waits=resources, member=key(member) if member else None)
        return self

    def give(self, resource: Resource, *names: str, role: Role = Role.HOLDS, basis: Basis = Basis.KERNEL) -> "Graph":
        """Tasks that can release it."""
        for name in names:
            self.claim(key(name), resource, role, basis)
        return self

    def of(self, name: str) -> Fate:
        """What becomes of a task."""
        self.solve()
        return self.fates[key(name)]


def test_a_wait_for_a_task_that_works_is_live() -> None:
    """Over any number of tasks that wait in between."""
    a, b = lock("a"), lock("b")
    graph = Graph().wait("one", a).wait("two", b).leaf("three", WORKS).give(a, "two").give(b, "three")

    assert graph.of("one") == replace(WORKS, by=key("two"))


def test_a_cycle_without_a_live_exit_is_settled() -> None:
    """Two threads that hold each other's locks."""
    a, b = lock("a"), lock("b")
    graph = Graph().wait("one", a).wait("two", b).give(a, "two").give(b, "one")

    assert graph.of("one").prospect is SETTLED
    assert graph.of("two").prospect is SETTLED


def test_a_cycle_with_a_live_exit_is_live() -> None:
    """One of the two can also be released by a third."""
    a, b = lock("a"), lock("b")
    graph = Graph().wait("one", a).wait("two", b).leaf("three", WORKS).give(a, "two").give(b, "one", "three")

    assert graph.of("one").prospect is LIVE


def test_a_wait_for_a_task_that_has_ended_is_settled() -> None:
    """Its fate is passed on."""
    a = lock("a")

    assert Graph().wait("one", a).leaf("two", ENDED).give(a, "two").of("one").prospect is SETTLED


def test_a_releaser_that_is_not_seen_makes_a_wait_open() -> None:
    """And says why."""
    a = lock("a", complete=False)
    found = Graph().wait("one", a).leaf("two", ENDED).give(a, "two").of("one")

    assert (found.prospect, found.why) == (OPEN, "unseen")


def test_a_releaser_that_is_not_seen_hides_no_better_one() -> None:
    """What works is known all the same."""
    a = lock("a", complete=False)

    assert Graph().wait("one", a).leaf("two", WORKS).give(a, "two").of("one").prospect is LIVE


def test_a_wait_without_a_releaser_is_settled_where_all_are_seen() -> None:
    """A lock that no task holds."""
    assert Graph().wait("one", lock("a")).of("one").prospect is SETTLED


def test_a_wait_for_an_unknown_resource_is_open() -> None:
    """No resource is named."""
    assert Graph().wait("one").of("one").prospect is OPEN


def test_any_takes_the_best_claim() -> None:
    """One releaser is enough."""
    a = lock("a")
    graph = Graph().wait("one", a).leaf("two", ENDED).leaf("three", Fate(DUE, until=9.0)).give(a, "two", "three")

    assert graph.of("one") == Fate(DUE, until=9.0, by=key("three"))


def test_all_takes_the_worst_claim() -> None:
    """A collective needs every member."""
    a = lock("a", Needs.ALL)
    graph = Graph().wait("one", a).leaf("two", WORKS).leaf("three", Fate(DUE, until=9.0)).give(a, "two", "three")

    assert graph.of("one").prospect is DUE
    assert graph.leaf("three", ENDED).of("one").prospect is SETTLED


def test_one_of_several_resources_is_enough() -> None:
    """A lock with a timeout of its own."""
    a, timer = lock("a"), Resource(Kind.TIMER, ("t",), until=5.0, sure=1.0)

    assert Graph().wait("one", a, timer).of("one") == Fate(DUE, until=5.0, works=1.0)


def test_a_member_does_not_wait_for_itself() -> None:
    """The set of those needed may hold it, itself or as the rank that it stands for."""
    a = lock("a", Needs.ALL)
    graph = Graph().wait("one", a, member="rank").wait("rank", lock("of the rank")).leaf("two", WORKS)
    graph.give(lock("of the rank"), "one").give(a, "rank", "two")

    assert graph.of("one").prospect is LIVE


def test_two_members_that_wait_for_each_other_are_settled() -> None:
    """Each needs the other one."""
    a = lock("a", Needs.ALL)

    assert Graph().wait("one", a).wait("two", a).give(a, "one", "two").of("one").prospect is SETTLED


def test_of_tasks_that_only_may_provide_a_heartbeat_is_no_work() -> None:
    """Real work is."""
    a = lock("a")

    assert Graph().wait("one", a).leaf("two", BEATS).give(a, "two", role=Role.MAY_PROVIDE).of("one").prospect is OPEN
    assert Graph().wait("one", a).leaf("two", WORKS).give(a, "two", role=Role.MAY_PROVIDE).of("one").prospect is LIVE
    assert Graph().wait("one", a).leaf("two", BEATS).give(a, "two").of("one").prospect is LIVE


def test_of_tasks_that_only_may_provide_waking_up_is_no_promise() -> None:
    """A holder that sleeps is one."""
    a, sleeps = lock("a"), Fate(DUE, until=9.0, works=1.0)

    assert Graph().wait("one", a).leaf("two", sleeps).give(a, "two", role=Role.MAY_PROVIDE).of("one").works == 0.0
    assert Graph().wait("one", a).leaf("two", sleeps).give(a, "two").of("one").works == 1.0


def test_the_earlier_moment_is_the_better_one() -> None:
    """And more work is better than less."""
    a = lock("a")
    graph = Graph().wait("one", a).leaf("two", Fate(DUE, until=9.0)).leaf("three", Fate(DUE, until=5.0))

    assert graph.give(a, "two", "three").of("one").until == 5.0


def test_the_basis_of_a_settled_wait_is_the_weakest_on_any_way() -> None:
    """All of them had to be asked."""
    a, b = lock("a"), lock("b", basis=Basis.STACK)
    graph = Graph().wait("one", a).wait("two", b).leaf("three", ENDED).leaf("four", ENDED)
    graph.give(a, "two").give(b, "three").give(b, "four", basis=Basis.TEXT)

    assert graph.of("one").basis is Basis.TEXT
    assert graph.of("four").basis is Basis.KERNEL


def test_the_basis_of_any_other_wait_is_that_of_the_claim_that_decides() -> None:
    """The weak claims beside it do not matter."""
    a = lock("a", basis=Basis.STACK)
    graph = Graph().wait("one", a).leaf("two", WORKS).leaf("three", ENDED)
    graph.give(a, "two").give(a, "three", basis=Basis.ELIMINATION)

    assert graph.of("one").basis is Basis.STACK


def test_the_sinks_are_what_no_other_task_blocks() -> None:
    """With what they wait for, or over what they were reached."""
    a, b = lock("a"), lock("b")
    graph = Graph().wait("one", a).wait("two", b).leaf("three", ENDED).give(a, "two").give(b, "three")
    graph.solve()

    assert [(task.key, resource) for task, resource in graph.sinks(key("one"))] == [(key("three"), b)]
    assert [task.key for task, _ in graph.way(key("one"))] == [key("one"), key("two"), key("three")]


def test_the_sink_of_a_cycle_is_where_it_was_entered() -> None:
    """Any of its tasks would do."""
    a, b = lock("a"), lock("b")
    graph = Graph().wait("one", a).wait("two", b).give(a, "two").give(b, "one")
    graph.solve()

    assert [task.key for task, _ in graph.sinks(key("one"))] == [key("one")]


def stalled_ranks(number: int) -> WaitGraph:
    """A collective that all but one of so many ranks have come to, and a rank that has come to another one, which needs all."""
    graph = Graph()
    late, all_of = lock("call", Needs.ALL), lock("other call", Needs.ALL)
    for rank in range(number):
        graph.wait(f"rank {rank}", all_of if rank % 2 else late)
    graph.give(late, "rank 1").give(all_of, *(f"rank {rank}" for rank in range(number)))
    return graph


@pytest.mark.parametrize("number", [64, 512])
def test_the_work_is_linear_in_the_claims(number: int) -> None:
    """Resources that need all ranks are one set, and no pairs."""
    graph = stalled_ranks(number)
    graph.solve()

    assert all(fate.prospect is SETTLED for fate in graph.fates.values())
    assert graph.operations <= 8 * number


@pytest.mark.parametrize("number", [64, 512])
def test_the_work_is_linear_where_all_ranks_go_on(number: int) -> None:
    """Every claim is looked at once."""
    graph, call = Graph(), lock("call", Needs.ALL)
    for rank in range(number):
        graph.wait(f"waits {rank}", call).leaf(f"rank {rank}", WORKS)
    graph.give(call, *(f"rank {rank}" for rank in range(number)))
    graph.solve()

    assert all(fate.prospect is LIVE for fate in graph.fates.values())
    assert graph.operations <= 8 * number


def naive(graph: WaitGraph) -> dict[Key, Fate]:
    """Ask every task again until nothing rises."""
    fates = {one: task.fate or Fate(SETTLED) for one, task in graph.tasks.items()}

    def of(resource: Resource, asker: Task) -> Fate:
        claims = [one for one in graph.claims[resource].values() if one.task not in (asker.key, asker.member)]
        found = [seen_through(one, fates[one.task]) for one in claims]
        choose: Callable[..., Fate] = min if resource.needs is Needs.ALL else max
        best = choose(found, key=lambda one: one.order[:2], default=Fate(SETTLED))
        lifted = [best] if resource.complete else [best, Fate(OPEN)]
        return max(lifted, key=lambda one: one.order[:2])

    rises = True
    while rises:
        rises = False
        for one, task in graph.tasks.items():
            if task.fate is None:
                found = max((of(resource, task) for resource in task.waits), key=lambda each: each.order[:2])
                if found.order[:2] > fates[one].order[:2]:
                    fates[one], rises = found, True
    return fates


FATES = st.sampled_from([WORKS, Fate(LIVE, works=0.5), Fate(DUE, until=9.0), Fate(DUE, until=5.0), Fate(OPEN), ENDED])


@st.composite
def graphs(draw: st.DrawFn) -> WaitGraph:
    """Up to eight tasks and five resources."""
    graph = Graph()
    number = draw(st.integers(1, 8))
    needs = st.sampled_from(Needs)
    resources = [lock(str(one), draw(needs), draw(st.booleans())) for one in range(draw(st.integers(1, 5)))]
    for one in range(number):
        if draw(st.booleans()):
            graph.leaf(str(one), draw(FATES))
        else:
            waited = draw(st.lists(st.sampled_from(resources), min_size=1, max_size=2, unique=True))
            graph.wait(str(one), *waited)
    for resource in resources:
        for one in draw(st.lists(st.integers(0, number - 1), max_size=4, unique=True)):
            graph.give(resource, str(one), role=draw(st.sampled_from(Role)), basis=draw(st.sampled_from(Basis)))
    return graph


@given(graphs())
@settings(max_examples=400, deadline=None)
def test_the_solver_finds_what_asking_everybody_again_finds(graph: WaitGraph) -> None:
    """Prospect, moment and work of every task."""
    graph.solve()

    assert {one: fate.order[:2] for one, fate in graph.fates.items()} == {
        one: fate.order[:2] for one, fate in naive(graph).items()
    }


def test_a_wait_is_as_silent_as_the_least_silent_of_its_sinks() -> None:
    """One that moved a moment ago may release it."""
    assert along([Silence(9.0), Silence(4.0)], None, None, None) == Silence(4.0)
    assert along([], Silence(5.0), None, None) == Silence(5.0)
    assert along([], None, None, None) == NOT_SILENT


def test_a_wait_is_no_older_than_the_last_known_move_of_its_start() -> None:
    """What was only watched bounds nothing; a step does."""
    sink, moved, watched = Silence(9.0), Silence(3.0, Source.OBSERVED), Silence(3.0, Source.WATCHED)

    assert along([sink], None, moved, None) == moved
    assert along([sink], None, watched, None) == sink
    assert along([sink], None, None, Silence(2.0, Source.OBSERVED)) == Silence(2.0, Source.OBSERVED)


def test_what_the_job_remembers_counts_where_it_is_longer() -> None:
    """A log that stopped before the first sample."""
    assert at_least(Silence(5.0), [60.0, 10.0]) == Silence(60.0, Source.REMEMBERED)
    assert at_least(Silence(5.0), [1.0]) == Silence(5.0)
    assert at_least(Silence(5.0), []) == Silence(5.0)
