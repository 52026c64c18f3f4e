"""Where a watch speaks to other programs while it goes on: Prometheus metrics and a webhook.

``gauges`` counts what passes on its way to the recording and makes a ``Snapshot`` of it. ``metrics`` and ``notifier`` are
processes of their own, fed through a channel that drops rather than waits: nothing that a scraper or a webhook does reaches
the loop. ``announcer`` decides what is worth a post.
"""
