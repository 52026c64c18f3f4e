"""``perfwatch top``: the loop behind the live view, its keys, and what it asks a watcher for."""
