"""What the program has switched on in torch, as the agent asks it once a second, after an optimizer step: two questions, 135 ns in all.

Loaded by ``agent/on_path/sitecustomize.py``: standard library only, Python 3.8 to 3.14. Nothing is switched here.
"""

from struct import Struct

_AT = 32  # of the steps page: its layout is in the docstring of ``probes/perfwatch_probes/steps.py``
_KNOWN, _ANOMALY_DETECTION, _CUDNN_BENCHMARK = 1, 2, 4


def keeper(torch):
    """The function that writes the answers to a page, when they change; idle where ``torch._C`` is other than we know it."""
    try:
        anomaly, benchmark = torch.is_anomaly_enabled, torch._get_cudnn_benchmark
        anomaly() + benchmark()
    except Exception:
        return lambda page: None
    write = Struct("<I").pack_into
    told, where = 0, None

    def keep(page):
        nonlocal told, where
        try:
            now = _KNOWN | (anomaly() and _ANOMALY_DETECTION) | (benchmark() and _CUDNN_BENCHMARK)
            if now != told or page is not where:  # a forked child has a page of its own
                write(page, _AT, now)
                told, where = now, page
        except Exception:  # it answers otherwise than at first: never the program's concern
            pass

    return keep
