"""User ids without an account that no other worker and no other run of the suite on this machine uses at the same time."""

import os

_FIRST, _RUNS, _USERS = 20_000, 1_000, 40  # below 65,536, the most that a container may have


def own_uid(number: int) -> int:
    """The user id of this number, from 0 to 39, that belongs to this worker."""
    assert 0 <= number < _USERS
    return _FIRST + os.getpid() % _RUNS * _USERS + number
