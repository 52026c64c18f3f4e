"""Real programs with a fault, and healthy ones that look faulty: they test perfwatch, here and on a user's own cluster.

``perfwatch drill`` lists them, ``perfwatch drill NAME`` runs one and shows the diagnosis, ``perfwatch drill --all`` runs the
gauntlet. ``programs/`` has one small program per file; the catalogues hold the expected verdicts.
"""

from perfwatch.drills.catalogue_gpu import GPU_DRILLS
from perfwatch.drills.catalogue_hung import HUNG_DRILLS
from perfwatch.drills.catalogue_many import with_more_ranks
from perfwatch.drills.catalogue_ranks import RANK_DRILLS
from perfwatch.drills.catalogue_slow import SLOW_DRILLS
from perfwatch.drills.drill import Drill

_EACH = HUNG_DRILLS + SLOW_DRILLS + GPU_DRILLS + RANK_DRILLS

DRILLS: tuple[Drill, ...] = _EACH + with_more_ranks(_EACH)
