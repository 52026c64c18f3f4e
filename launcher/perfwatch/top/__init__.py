"""``perfwatch top``: the live view, its loop, its keys, and its requests to the watcher."""
