"""``perfwatch dmon``: what the GPUs do, row by row, with the ranks on them."""
