"""perfwatch: why is this training run not making progress, or making it slowly, and who is to blame?

The map, in the order in which a diagnosis flows:

- ``perfwatch_probes``    look at the job and the machine, never touch; each yields readings or says why it cannot
- ``perfwatch.target``    the watched job: its processes, ranks and workers
- ``perfwatch.watch``     the loop: read each probe when it is due, append, judge again; ``watching`` is what it is made of
- ``perfwatch.recording`` the session; everything after this line is a pure function of it; ``storing`` is how it lies on disk
- ``perfwatch.triage``    readings to wait chains to one verdict; ``triage/rules`` holds one file per cause
- ``perfwatch.report``    the verdict on a terminal, as JSON, a page, a trace

Around it:

- ``perfwatch.commands``  what the user types; ``running``, ``screen``, ``checkups``, ``comparison``, ``daemon``, ``fleet`` what lies
  behind ``run``, ``top``, ``doctor``, ``compare``, ``daemon`` and ``fleet``
- ``perfwatch.captures``  bounded windows of real profilers, by ``kineto`` and ``nsight``; ``traces`` reads what they bring
- ``perfwatch.agent``     the one file that runs inside the job; ``agent_parts`` what it loads when it is asked to
- ``perfwatch.outlets``   metrics and notifications
- ``perfwatch.drills``    the sick programs that keep us honest; ``gauntlet`` runs and scores them
"""

__version__ = "0.1.0"
