"""What the watcher of ``perfwatch run`` says to the user while the job runs: few lines, harmless ones, and never more than fit.

It says them to the launcher, whose printers write them.
"""

from collections import deque

from perfwatch.processes.channel import Channel
from perfwatch.report.sentences import culprit_text, culprit_title, culprits_of, evidence_of
from perfwatch.text import clean
from perfwatch.verdict import Verdict, confidence_word
from perfwatch.watching.news import News

UNREMARKABLE = (
    "healthy",
    "busy",
)  # no news, unless it takes something back or keeps other ranks waiting
LONGEST_TEXT = 8192  # what a terminal takes at once; the rest is in the session
MOST_SAID = 64  # of which the summary shows the last few
MOST_CULPRITS, MOST_EVIDENCE = 2, 5


class Voice:
    """Speaks through the launcher.

    Args:
        channel: our end of the line to it.

    Attributes:
        said: what was told of the job, oldest first, each with what it was: suspected, reported or retracted.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.said: deque[tuple[str, str]] = deque(maxlen=MOST_SAID)
        self._awaited: set[str] = set()  # functions that were told of, in which a rank works while others wait

    def say(self, text: str) -> None:
        """Say a text of any number of lines; none where it is empty."""
        lines = [clean(line) for line in text[:LONGEST_TEXT].splitlines()]
        if lines:
            self._channel.send({"say": "\n".join(f"perfwatch: {line}" for line in lines)})

    def news(self, news: News) -> None:
        """Say what is new of the job, and keep it for the summary, which says by itself that the job ended well."""
        if news.verdict is not None and news.verdict.cause == "finished":
            return
        if news.kind != "verdict" or news.verdict is None:
            self.say(f"{news.kind}: {news.text}")
            self.said.append(("suspected" if news.kind == "suspicion" else "retracted", news.text))
        elif news.verdict.state not in UNREMARKABLE or self._is_new_to_those_who_wait(news.verdict):
            self.say(short(news.verdict))
            cause = news.verdict.cause or "no cause named"
            self.said.append(("reported", f"{news.verdict.state}: {cause} ({news.text})"))

    def _is_new_to_those_who_wait(self, verdict: Verdict) -> bool:
        """True if ranks have waited for a good while for another one that works; of each function once, for it may come back."""
        blamed = {one.rank: (one.frame or "").partition(" ")[0] for one in verdict.culprits}
        if verdict.silent_seconds is None or not any(link.rank not in blamed for link in verdict.wait_chain):
            return False
        new = set(blamed.values()) - self._awaited
        self._awaited |= new
        return bool(new)


def short(verdict: Verdict) -> str:
    """A verdict in a few lines: what, how sure, the evidence, what next."""
    lines = [f"{verdict.state.upper()}: {verdict.summary} (confidence: {confidence_word(verdict.confidence)})"]
    lines += [
        f"  {culprit_title(verdict)}: {culprit_text(one)}" for one in culprits_of(verdict.culprits)[:MOST_CULPRITS]
    ]
    lines += [f"  {of}: {one.claim}: {one.observed}" for one, of in evidence_of(verdict.evidence)[:MOST_EVIDENCE]]
    lines += [f"  next: {step}" for step in verdict.next[:1]]
    return "\n".join(lines)
