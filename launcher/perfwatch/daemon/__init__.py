"""A whole node: ``scanner`` finds training jobs as they appear, ``ward`` watches one in a process of its own, ``node`` is the
loop around them, ``housekeeping`` keeps all recordings together within a budget.
"""
