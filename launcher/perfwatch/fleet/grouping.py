"""Which jobs of several hosts are one: by what their ranks say of themselves, and by which ranks each host has.

What is said is seldom wrong and often little: the first host may call its master ``localhost``, two jobs may have torch's usual
port, and of one job each node may be a step of Slurm's of its own. Where that leaves a doubt, the user is asked which is meant.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from perfwatch.errors import UsageError
from perfwatch.fleet.merge.snapshot import JobView, Snapshot
from perfwatch.jobs.identity import Identity
from perfwatch.jobs.target import WORKER_NAME
from perfwatch.text import listed
from perfwatch_probes.readings import Process

MOST_JOBS_NAMED = 6
NOT_MET = "blocked_rendezvous"
ONE_OF_THEM = "choose one by a part of what it says: --job TEXT, or name its hosts alone"


@dataclass
class Group:
    """What may be one job. ``closed``: it has all its ranks on one host, or nothing tells it from other jobs."""

    identity: Identity
    closed: bool
    views: list[tuple[str, JobView]] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    machines: set[str] = field(default_factory=set)  # how the hosts call themselves
    numbered: bool = True
    met: bool = False  # some of its ranks are beyond the rendezvous

    def add(self, host: str, machine: str, view: JobView) -> None:
        """One host's part."""
        self.views.append((host, view))
        self.ranks.update(view.ranks)
        self.hosts.add(host)
        self.machines.add(machine.partition(".")[0])
        self.numbered = self.numbered and view.numbered
        verdict = view.verdict
        self.met = self.met or NOT_MET not in (verdict.cause, verdict.suspect.cause if verdict.suspect else None)

    def take(self, other: "Group") -> None:
        """All of another one, with the better name of the master."""
        if self.identity.master_is_local:
            self.identity = other.identity
        self.views += other.views
        self.ranks |= other.ranks
        self.hosts |= other.hosts
        self.machines |= other.machines
        self.numbered = self.numbered and other.numbered
        self.met = self.met or other.met

    def joins(self, other: "Group") -> bool:
        """True if both are one job: nothing that is said parts them, and no host or rank is in both.

        Ranks that never met may have been told different masters by mistake: then that is what keeps them apart.
        """
        if self.closed or other.closed or not self.hosts.isdisjoint(other.hosts):
            return False
        sizes = {self.identity.world_size, other.identity.world_size}
        if len(sizes) > 1 and None not in sizes:
            return False
        if self.numbered and other.numbered and not self.ranks.isdisjoint(other.ranks):
            return False
        met = self.met or other.met
        one, two = (each.identity if met else each.identity.without_master() for each in (self, other))
        return one.joins(two)

    def shown(self) -> str:
        """For a person who has to choose."""
        return f"{self.identity.shown()} (on {listed(host for host, _ in self.views)})"


def chosen(snapshots: Mapping[str, Snapshot], scheduler: str = "") -> Group:
    """The one job of these hosts.

    Args:
        snapshots: by host.
        scheduler: as ``Engine.job``: of several jobs the one that says this is meant.

    Raises UsageError: there are several, and nothing says which is meant.
    """
    groups = grouped(snapshots)
    if scheduler:
        named = [one for one in groups if any(v.identity.scheduler.startswith(scheduler) for _, v in one.views)]
        groups = named or groups
    if len(groups) > 1:
        shown = "; ".join(one.shown() for one in groups[:MOST_JOBS_NAMED])
        raise UsageError(f"{len(groups)} jobs run on these hosts: {shown}", ONE_OF_THEM)
    _refuse_twice(groups[0])
    return groups[0]


def grouped(snapshots: Mapping[str, Snapshot]) -> list[Group]:
    """All jobs: first those that say the same, then those of which nothing says that they are two. Of the latter the ones that
    name their master best come first, for what calls it ``localhost`` fits to many."""
    alike: dict[tuple[object, ...], Group] = {}
    for host, snapshot in snapshots.items():
        for view in _living(snapshot.jobs):
            key, closed = _key(host, view)
            alike.setdefault(key, Group(view.identity, closed)).add(host, snapshot.host, view)
    found: list[Group] = []
    for one in sorted(alike.values(), key=lambda group: group.identity.master_is_local):
        near = [other for other in found if other.joins(one)]
        if len(near) > 1:
            near = [other for other in near if other.identity.address.partition(".")[0] in one.machines]
        if len(near) == 1:
            near[0].take(one)
        else:
            found.append(one)
    return found


def _key(host: str, view: JobView) -> tuple[tuple[object, ...], bool]:
    """Equal for parts that say the same, and whether no other part can be of the job. A host with all ranks of a world has its own."""
    identity = view.identity
    size = identity.world_size
    if size is not None and len(view.ranks) >= size:
        return (host, *identity.key, identity.program), True
    if not identity.told:
        return (identity.program,), True
    address = "" if identity.master_is_local else identity.address
    return (*identity.key, address, size), False


def _living(jobs: Sequence[JobView]) -> Iterator[JobView]:
    """Without DataLoader workers whose rank has ended, where there is anything else: they end within seconds."""
    orphans = [_orphaned(view) for view in jobs] if len(jobs) > 1 else []
    return (view for index, view in enumerate(jobs) if not orphans or all(orphans) or not orphans[index])


def _orphaned(view: JobView) -> bool:
    tops = set(view.session.root_pids)
    names = {one.reading.name for one in view.records if isinstance(one.reading, Process) and one.reading.pid in tops}
    return bool(names) and all(name.startswith(WORKER_NAME) for name in names)


def _refuse_twice(group: Group) -> None:
    """Raise UsageError for two jobs that say the same: both on one host, or each rank twice on several."""
    by_host: dict[str, list[JobView]] = {}
    for host, view in group.views:
        by_host.setdefault(host, []).append(view)
    for host, views in by_host.items():
        if len(views) > 1:
            pids = [view.session.root_pids[0] for view in views if view.session.root_pids]
            advice = "; ".join(f"perfwatch attach {pid}" for pid in pids[:MOST_JOBS_NAMED])
            raise UsageError(
                f"{len(views)} jobs on {host} say the same of themselves: {group.identity.shown()}",
                f"look at one of them there: {advice}",
            )
    claims = Counter(rank for _, view in group.views if view.numbered for rank in view.ranks)
    size = group.identity.world_size
    if size is not None and len(claims) >= size and min(claims.values()) > 1:
        raise UsageError(
            f"every rank of {group.shown()} is there twice: these are two jobs that say the same of themselves",
            "name the hosts of one of them alone: perfwatch fleet --hosts ...",
        )
