"""The GPUs of a job, as facts for the rules.

``whose``: which processes use which card. ``gpu``: what a card does. ``accelerated``: a rank that makes steps, with its card.
``hardware``: what a card can do, what holds its clock down, and how near it comes to that. ``xids``: the errors that the driver announced.
"""
