"""``perfwatch attach``: watch a running job until the verdict is clear, or ask the watcher that it has already."""
