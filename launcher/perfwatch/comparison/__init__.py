"""Two recordings held against each other: ``compare(a, b)`` is a pure function of both.

``steps`` and ``measures`` read one recording, ``bootstrap`` says how sure a difference is, ``conditions`` whether the two
can be compared at all, ``comparison`` puts it together, ``gate`` makes an exit code of it.
"""
