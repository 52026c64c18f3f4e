"""Who is who in a job: its ranks, their workers and launchers, read from processes alone. The light part of the interface.

``perfwatch ps`` and ``dmon`` need this and no verdict: 20 modules of triage, where ``questions`` loads 258.
"""

from perfwatch.triage.roles.job import TICKS_PER_SECOND, Job, Member, adopted, read_job
from perfwatch.triage.roles.placement import RankGaps, launches, program_of, rank_of, rank_ranges

__all__ = [
    "TICKS_PER_SECOND",
    "Job",
    "Member",
    "RankGaps",
    "adopted",
    "launches",
    "program_of",
    "rank_of",
    "rank_ranges",
    "read_job",
]
