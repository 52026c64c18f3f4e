"""Files that a job left behind, made into a recording: what ``perfwatch autopsy`` judges.

``files`` lists them, ``kinds`` tells by content what each is, ``reading`` reads one in a child that may be killed, ``logs`` reads a log,
``recording_of`` puts the readings together. Nothing here says why the job ended: ``perfwatch.postmortem`` does.
"""
