"""GPM metrics by the names and numbers that NVML gives them, as ``nvidia-smi dmon --gpm-metrics`` takes them.

Names are those of nvmlGpmMetricId_t in lower case, without their prefix: ``nvdec_0_util``, ``nvlink_l3_rx_per_sec``. Source of the
list: nvidia-ml-py, which carries NVML's header. What a card does not have stays unknown.
"""

_PREFIX, _COUNT = "NVML_GPM_METRIC_", "max"
_PERCENT = ("_util", "_occupancy", "_pct")  # NVML tells these in percent
_TRAFFIC = "_per_sec"  # and these in MiB a second
MOST = 80  # besides our own: a question to the first drivers with GPM has room for 98 (NVML_GPM_METRIC_MAX)


def known() -> dict[str, int]:
    """Every metric of NVML: its number by its name. Imports nvidia-ml-py (20 ms)."""
    import pynvml  # type: ignore[import-untyped]

    names = {name[len(_PREFIX) :].lower(): value for name, value in vars(pynvml).items() if name.startswith(_PREFIX)}
    return {name: value for name, value in sorted(names.items(), key=lambda one: one[1]) if name != _COUNT}


def chosen(text: str) -> dict[str, int]:
    """Metrics out of a list such as ``30,62-65,hmma_tensor_util``. Raises ValueError with the word that is none."""
    everything = known()
    names = {number: name for name, number in everything.items()}
    found: dict[str, int] = {}
    for word in text.lower().split(","):
        name = word.strip()
        first, dash, last = name.partition("-")
        last = last if dash else first
        if name in everything:
            some = {name: everything[name]}
        elif first.isdecimal() and last.isdecimal():
            some = {one: number for number, one in names.items() if int(first) <= number <= int(last)}
        else:
            some = {}
        if not some:
            raise ValueError(name)
        found |= some
    return found


def scale(name: str) -> float:
    """From NVML's unit to ours: percent become shares."""
    return 0.01 if name.endswith(_PERCENT) else 1.0


def unit(name: str) -> str:
    """Of what we show, for the head of a column."""
    return "%" if name.endswith(_PERCENT) else "MiB/s" if name.endswith(_TRAFFIC) else ""
