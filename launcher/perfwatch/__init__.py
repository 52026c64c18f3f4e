"""perfwatch: why is this training run not making progress, or making it slowly, and who is to blame?

The map, in the order of a diagnosis:

- ``perfwatch_probes``     read the job and the machine and change nothing; each returns readings or says why it cannot
- ``perfwatch.jobs``       the watched job: its processes, ranks and workers
- ``perfwatch.watching``   the loop: read each probe when it is due, append, judge again
- ``perfwatch.recording``  the session; everything after it is a pure function of the recording
- ``perfwatch.triage``     from readings to wait chains to one verdict; ``triage/rules`` holds the rules, one module per family of causes
- ``perfwatch.report``     the verdict on a terminal, as JSON, as a page, as a trace

Around it:

- ``perfwatch.commands``   what the user types. What a command needs lies in a package of its name: ``run``, ``attach``, ``top``,
  ``dmon``, ``doctor``, ``daemon``, ``fleet``, ``comparison``
- ``perfwatch.captures``   bounded windows of real profilers (``kineto``, ``nsight``); ``traces`` reads what they write
- ``perfwatch.agent``      what runs inside the job
- ``perfwatch.exporters``  metrics and notifications
- ``perfwatch.processes``  our own processes: places in shared memory, channels, helpers, the control socket
- ``perfwatch.drills``     programs with a known fault that test perfwatch; ``gauntlet`` runs and scores them
"""

__version__ = "0.2.0"
