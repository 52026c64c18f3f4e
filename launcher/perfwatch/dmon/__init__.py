"""``perfwatch dmon``: what the GPUs do, row by row, with the ranks of the jobs on them."""
