"""How a job, a process or a thread ended, and what it said last."""
