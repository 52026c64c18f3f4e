"""The GPUs of a job, as facts for the rules.

``whose``: which process uses which card. ``gpu``: what a card does. ``accelerated``: a rank that makes steps, with its card.
``neighbours``: which processes share a card. ``hardware``: what a card can do, and what holds its clock down. ``efficiency``: how near
it comes to that. ``xids``: the errors that the driver announced. ``thresholds``: the numbers that they share.
"""
