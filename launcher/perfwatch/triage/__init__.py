"""Triage: from a recording to one verdict, by pure functions. ``diagnose`` is the way in, ``rules`` the catalogue.

The map, from what is read to what is said:

- ``history`` the readings up to one moment; ``case`` everything that a rule may look at, made from it once
- ``roles``   who is who: ranks, workers, launchers
- ``words``   what frames and lines of code say
- ``moving``  what moves and what stands
- ``waits``   the wait chain, to whatever does not move
- ``ranks``   who waits for whom in which collective; ``fleet`` the same over many hosts
- ``cards``   what the GPUs really do
- ``shares``  where the time goes
- ``ends``    how a job, a process or a thread ended
- ``hang``, ``slowness``, ``busy`` what all rules about a state share; ``rules`` one file per cause
- ``verdict`` what comes out
"""
