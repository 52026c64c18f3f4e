"""The loop that watches one job: what is sampled, when, how closely, and what is reported."""
