"""Deep captures: the right profiler, for a bounded window, on the live job. ``perfwatch.captures.catalogue`` is what there is.

A request comes from ``perfwatch capture``, a signal or a rule; ``perfwatch.captures.taking`` does the same for each kind:
pre-flight checks, the window, size cap, post-flight check, and a sentence on what it cost. Where a watcher runs, a helper
process of the watcher's does it, so that neither the judging nor the job ever waits for a profiler.

To add one: a module here with the names of ``perfwatch.captures.capture.Capture`` (module-level constants and functions
are enough), a line in the catalogue, ``tests/captures/test_X.py``, a row in README.md here. ``available`` says what is missing
with the exact fix, ``command`` gives the exact argv (pure), ``collect`` works through the ``Window`` alone and raises
``CaptureFailed``. If ``run`` must prepare the job, it calls ``perfwatch.processes.armed.write_armed(place, NAME, facts)``
and the capture finds the facts in ``scene.armed[NAME]``. Options of one kind alone go into ``OPTIONS``: ``perfwatch
capture`` offers them and hands them over in ``request.options``.
"""
