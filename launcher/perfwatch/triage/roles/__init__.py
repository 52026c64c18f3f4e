"""Who is who in a job: its ranks, workers and launchers, told from the readings alone."""
