"""The endpoint that the profilers inside a job ask (Kineto on demand): what is said, who answers, who keeps it.

Part of the launcher, and so small: it is imported before the job is started. The capture that uses it is
``perfwatch.captures.torch_profiler``.
"""
