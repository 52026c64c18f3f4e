"""What the GPUs really do: work, wait, spin or idle; how near they come to what they can do; and who waits for them."""
