"""Windows, sample floors and confidence levels that the modules of a time budget share."""

# How far back samples count: what a thread does now, what it has done lately, how the run went.
NOW_SECONDS, LATELY_SECONDS, RUN_SECONDS = 5.0, 20.0, 600.0
ENOUGH_SAMPLES = 20  # to speak of shares of a thread's time, or to say that it is at none of some kind of work

# Confidence: a suspicion, below what makes a verdict; likely, and something else looks the same; sure; seen from two sides.
LOW, MEDIUM, HIGH, CERTAIN = 0.5, 0.65, 0.8, 0.95
