"""``--fail-if-slower``: an exit code for continuous integration that fails only if the difference is certain."""

from perfwatch.comparison.comparison import Comparison, disagreement
from perfwatch.errors import EXIT_CODES
from perfwatch.text import clean, duration


def gate(comparison: Comparison, percent: float) -> tuple[int, str]:
    """Exit code and what to say: 60 where B surely makes fewer steps a second by more, 0 where it surely does not, 50 otherwise.

    Surely means that the whole 95 % interval of the change lies on one side of ``percent``. A run that crashed or hung does not
    pass, however fast its steps were until then.
    """
    rate = comparison.rate
    if rate is None:
        who = [name for name, side in (("A", comparison.a), ("B", comparison.b)) if not side.timed_steps]
        return EXIT_CODES["inconclusive"], f"cannot tell whether B is slower: no step times of {' and '.join(who)}"
    if rate.change_interval is None:
        steps = f"{comparison.a.timed_steps} and {comparison.b.timed_steps}"
        return EXIT_CODES["inconclusive"], f"cannot tell whether B is slower: too few steps ({steps}, 30 at least)"
    low, high = rate.change_interval
    said = f"B makes {_more(rate.change)} steps a second ({_percent(low)} to {_percent(high)})"
    allowed = f"at most {percent:g} % fewer are allowed"
    differs = disagreement(comparison)
    also = f"\n  {differs}" if differs else ""
    if 100.0 * high < -percent:
        return EXIT_CODES["gate_failed"], f"slower than allowed: {said}; {allowed}{also}"
    if comparison.b.failed:
        return EXIT_CODES["inconclusive"], (
            f"cannot tell whether B is slower: it failed after {duration(comparison.b.seconds)} ({clean(comparison.b.failed)}); "
            f"until then {said}{also}"
        )
    if 100.0 * low >= -percent:
        return EXIT_CODES["healthy"], f"not slower than allowed: {said}; {allowed}{also}"
    return EXIT_CODES["inconclusive"], (
        f"cannot tell whether B is slower than allowed: {said}, and {-percent:+g} % lies within; longer runs tell{also}"
    )


def _percent(share: float) -> str:
    return f"{100.0 * share:+.1f} %"


def _more(share: float) -> str:
    size = f"{abs(100.0 * share):.1f} %"
    return "as many" if size == "0.0 %" else f"{size} {'more' if share > 0.0 else 'fewer'}"
