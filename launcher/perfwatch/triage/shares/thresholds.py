"""Windows, sample floors and shares that the modules of a time budget share."""

# How far back samples count: what a thread does now, what it has done lately, how the run went.
NOW_SECONDS, LATELY_SECONDS, MINUTE_SECONDS, RUN_SECONDS = 5.0, 20.0, 60.0, 600.0

ENOUGH_SAMPLES = 20  # to speak of shares of a thread's time, or to say that it is at none of some kind of work
MANY_SAMPLES = 40  # to say that what takes a tenth of the time does not happen: all would miss it with e**-4
# Times that something was met: it comes back; it does so in each step; often enough to compare; so often that what belongs to it
# would show.
TWICE, FEW_TIMES, SEVERAL_TIMES, MANY_TIMES = 2, 3, 5, 6

# Parts of a thread's time: more than a run without a fault spends so; a good part; what is done in each step; a large part; half; most;
# all but what torn samples hide.
NOTABLE, MUCH, OFTEN, LARGE, MOSTLY, MOST, NEARLY_ALL = 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9

BEYOND = 3.0  # times the longest that was seen before: what lasts longer is something else

# Of the patience: until then a lock whose owner works may be handed over, again and again, and a rank may come to a collective.
# No pause as long as the longest that the run has recovered from lasts so long: the patience is three times that.
LASTS = 0.35

LOST_SHARE = 0.15  # of the training thread's time: below it a cause is not worth a verdict
