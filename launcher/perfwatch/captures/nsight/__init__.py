"""NVIDIA's own profilers, driven from outside: where they are, what this version can do, the exact command lines.

- ``finding``      nsys and ncu on PATH, in CUDA and in Nsight installs; the version; the options that it lists
- ``permission``   whether the driver lets us read the performance counters, and the fix
- ``ncu_command``  Nsight Compute's command lines, pure
- ``ncu_report``   a .ncu-rep file to a kernel table
- ``nsys_session`` what ``run --arm nsys`` prepares, with ``placeholder``, which nsys launches in the job's stead
- ``ncu_session``  what ``run --arm ncu`` prepares, with ``under_ncu``, which passes signals on to the job
- ``first_steps``  what ncu costs such a job, measured on its first steps
- ``second_run``   ``perfwatch ncu``, with ``choosing``, which takes the kernels from a capture
- ``importer``     why nsys left a raw recording
"""
