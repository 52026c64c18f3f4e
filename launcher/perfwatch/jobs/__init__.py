"""Which processes form a training job: all jobs of this machine, or the job of one PID."""
