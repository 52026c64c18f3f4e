"""What the loop that watches one job is made of: whom to look at, when, how closely, and what of it is told."""
