"""What frames and lines say: the functions of CPython, torch and widely used libraries, and the text of the job's own code."""
