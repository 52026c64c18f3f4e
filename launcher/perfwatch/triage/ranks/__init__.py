"""Many ranks: who waits for whom in which collective, who is not in it, and why."""
