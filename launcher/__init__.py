"""perfwatch: why is this training run not making progress, or making it slowly, and who is to blame?

The map, in the order in which a diagnosis flows:

- ``perfwatch.probes``    look at the job and the machine, never touch; each yields readings or says why it cannot
- ``perfwatch.target``    the watched job: its processes, ranks and workers
- ``perfwatch.watch``     the loop: read each probe when it is due, append, judge again
- ``perfwatch.recording`` the session folder; everything after this line is a pure function of it
- ``perfwatch.triage``    readings to wait chains to one verdict; ``triage/rules`` holds one file per cause
- ``perfwatch.report``    the verdict on a terminal or as JSON
- ``perfwatch.commands``  what the user types; ``perfwatch.drills`` the sick programs that keep us honest
"""

__version__ = "0.1.0"
