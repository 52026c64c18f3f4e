"""Triage: from a recording to one verdict, by pure functions. ``diagnose`` is the way in, ``rules`` the catalogue.

From outside only ``job``, ``history``, ``case``, ``diagnose``, ``rule``, ``rules`` and ``questions`` are imported; import-linter
holds that, so that everything else can be rewritten without its users.

The map, from what is read to what is said:

- ``history`` the readings up to one moment; ``case`` everything that a rule may look at, made from it once
- ``roles``   who is who: ranks, workers, launchers
- ``words``   what frames and lines of code say
- ``moving``  what moves and what stands
- ``waits``   the wait chain, to whatever does not move
- ``graph``   what waits for what, and whether a task can still release it: the one place that answers this
- ``ranks``   who waits for whom in which collective
- ``cards``   what the GPUs really do
- ``shares``  where the time goes: ``budget`` puts each sample of the training thread into one bin
- ``ends``    how a job, a process or a thread ended
- ``hang``, ``slowness`` what all rules about a state share; ``rules`` a module per family of causes, ``explain`` a page for each
- ``job``     who is who, for users that need no verdict; ``questions`` what users ask besides a verdict
"""
