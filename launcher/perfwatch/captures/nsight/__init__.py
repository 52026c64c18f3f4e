"""NVIDIA's profilers, driven from outside: where they are, what this version can do, exact command lines. README.md lists the modules."""
