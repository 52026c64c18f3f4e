"""What moves and what stands: threads, steps, loops, bytes and memory, over time."""
