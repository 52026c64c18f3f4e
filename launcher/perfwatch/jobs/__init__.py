"""The watched job: training jobs of this machine, from any PID to its job, and process trees that belong together."""
