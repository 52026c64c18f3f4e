"""Many hosts: what each one sends of its part of a job, and one verdict made of it."""
