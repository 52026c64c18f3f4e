"""What speaks for each lever in the steps of a run: one function a lever, by what it is about."""
