"""``perfwatch run``: the launcher process, the child that it starts, and the watcher process beside it."""
