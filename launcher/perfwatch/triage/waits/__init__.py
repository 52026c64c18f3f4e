"""The wait chain: from the training thread through locks, queues, workers, children and connections to whatever does not move."""
