"""What perfwatch accepts at most from a job, a recording, a node or an archive; each number with its reason.

A job's owner writes its command line, its environment and its threads, and anyone may write a recording. Every border reads
with these bounds. What lies beyond is left out and counted, or refused as damaged.
"""

import re

# One chunk of /proc. The kernel allows a single argument 128 KiB (MAX_ARG_STRLEN); torchrun with all options takes 2 KiB.
ARGUMENTS_BYTES = 64 * 2**10
MOST_ARGUMENTS = 4096
# Half of what execve allows by default for arguments and environment together (a quarter of the 8 MiB stack).
ENVIRONMENT_BYTES = 2**20
VARIABLE_BYTES = 4096  # of one value; the longest in use name the cards or the interfaces of a node
# The 65,530 mappings that the kernel allows by default take 10 MiB, torch with 2,000 threads 1 MiB.
MAPS_BYTES = 16 * 2**20
KERNEL_FILE_BYTES = 16 * 2**20  # of any other file of the kernel's; /proc/net/tcp with 100,000 connections has 15 MB
MOST_NAMES = 2**17  # in a folder of /proc: more than the threads or open files of any training

# The largest published training runs have fewer than 2**17 ranks.
MOST_RANKS = 2**20
MOST_DIGITS = 20  # of a number in text: 2**64 has 20

# Ancestors of a process. Slurm, containers, shells and launchers together are a dozen.
MOST_GENERATIONS = 256

# Numbers of a recording: counters and masks of the kernel have 64 bits.
LARGEST_NUMBER = 2.0**64
LATEST_CREATED = 2.0**33  # unix time in the year 2242
LONGEST_SESSION_SECONDS = 2.0**31  # 68 years
MOST_NESTED = 64  # objects and lists in each other; a verdict nests 7 deep
# More than four times the largest session that perfwatch writes, and of its shortest lines.
SESSION_BYTES = 2**30
MOST_RECORDS = 2**22
# Numbers, texts, objects and lists. A session of 256 MiB has half as many, at 17 bytes each; an empty object takes 72 bytes of memory.
MOST_VALUES = 2**25
# Frames of a stack that a file defines once and names by its number: CPython's own limit is 1,000, and a longer one is written whole.
MOST_STACK_FRAMES = 1024
# Frames of all readings of a session that name a stack by its number: a line of 120 bytes stands for a thousand. A session of
# 256 MiB has 2 million such lines at most, of 30 frames.
MOST_NAMED_FRAMES = 2**27
MOST_FILES = 4096  # of a session: 256 MiB in segments of 8 MiB, or of 4 KiB where the budget is small

# Archives: what tarfile reads into memory before it returns a member.
ARCHIVE_HEADER_BYTES = 64 * 2**10  # path names have at most 4 KiB
MOST_MEMBERS = 8192  # twice the files of a session

# py-spy's own limit for Python threads; asked of a process with more, native ones included, it takes 14 s of CPU.
MOST_STACKED_THREADS = 4096

_NUMBER = re.compile(rf"[0-9]{{1,{MOST_DIGITS}}}")


def count(text: str | None, most: int = MOST_RANKS) -> int | None:
    """A whole number from 0 to ``most`` that a job wrote as text; None for anything else."""
    if text is None or not _NUMBER.fullmatch(text.strip()):
        return None
    number = int(text)
    return number if number <= most else None


def most_values(data: bytes) -> int:
    """How many values this JSON holds at most: each but the first comes behind a comma or the beginning of a list or an object."""
    return 1 + data.count(b",") + data.count(b"[") + data.count(b"{")


def is_rank(number: int | None) -> bool:
    """True if a process may have this rank or world size; None is a process without one."""
    return number is None or 0 <= number <= MOST_RANKS
