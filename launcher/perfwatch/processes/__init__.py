"""The ground floor of perfwatch's own processes: where they meet (place), how they talk (channel, control), helpers that may be killed."""
