"""What profilers wrote, read without loading it in a viewer: streamed, bounded, and never trusted.

- ``families``      which kind of work a kernel is, from its name
- ``passes``        which pass of a training step a kernel belongs to, from the order of the names
- ``ncu_rows``      what Nsight Compute measured, one row a kernel, from ``ncu --import X --page raw --csv``
- ``kernel_table``  those rows folded: per kernel and pass, per family, and the efficiency of the whole
"""
