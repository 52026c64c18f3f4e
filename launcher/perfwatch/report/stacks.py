"""Where every rank is, folded: equal stacks once, with the ranks that show them."""

from dataclasses import dataclass

from perfwatch.report.folded_stacks import Folded, fold, newest
from perfwatch.report.folding import heading
from perfwatch.report.story import Story
from perfwatch.text import clean
from perfwatch.triage.questions import is_user


@dataclass(frozen=True)
class FoldedGroup:
    """One stack, innermost frame first as (text, whether it is the program's own), and whose it is."""

    heading: str
    frames: tuple[tuple[str, bool], ...]
    variants: int


def folded(story: Story) -> list[FoldedGroup]:
    """Every group, the one of most ranks first, then those that stand apart."""
    groups = all_folded(story)
    return [
        FoldedGroup(
            heading=clean(heading(group, groups.ranks)),
            frames=tuple((clean(f"{one.function} ({one.file}:{one.line})"), is_user(one)) for one in group.frames),
            variants=group.variants,
        )
        for group in groups.groups
    ]


def all_folded(story: Story) -> Folded:
    """The groups as triage has them."""
    job = story.case.job
    return fold(newest(story.case.history, job), job.world_size)
