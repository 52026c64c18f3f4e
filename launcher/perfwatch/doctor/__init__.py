"""``perfwatch doctor``: what can be observed here, what cannot, and the exact fix."""
