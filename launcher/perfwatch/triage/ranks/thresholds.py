"""How sure a finding about ranks may be, and what several of its modules compare or print."""

MEDIUM, HIGH, CERTAIN = 0.65, 0.8, 0.95  # levels of confidence

SHOWN = 8  # ranks or calls that one sentence lists
FEW = 4  # pieces of evidence of one kind
APART_SECONDS = 1.5  # between two answers that are compared
COMPARE = "compare the named lines: which condition sends the ranks apart?"
