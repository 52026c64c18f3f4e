"""Pressure stall information: how long tasks waited for CPU, memory or I/O (format: kernel, accounting/psi.rst)."""

import re

from perfwatch_probes.readings import Pressure

RESOURCES = ("cpu", "memory", "io")
_TOTAL = re.compile(r"^(some|full) .*total=(\d+)$", re.M)


def parse_pressure(text: str) -> Pressure:
    """Totals of one file. Kernels before 5.13 have no ``full`` line for cpu; there it is 0 by definition.

    Raises ValueError without a ``some`` line.
    """
    totals = {kind: int(total) for kind, total in _TOTAL.findall(text)}
    if "some" not in totals:
        raise ValueError("no line 'some ... total=' in it")
    return Pressure(some_microseconds=totals["some"], full_microseconds=totals.get("full", 0))
