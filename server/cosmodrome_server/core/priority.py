"""In which order a receive looks at the queues of a priority topic.

    priority factor 100    always from the highest queue down
    priority factor 30     three receives of ten from the top, the others begin where the
                           last one ended, so that low priorities do not starve

A message's queue is its priority (`core.send`). From the top, messages that are delivered
again come after the new ones. The share is spread evenly and not drawn, so that the same
receives in the same order find the same messages.

Source: protocol.md 7.12.
"""

# Multiples of it modulo 100 visit every number once, and neighbours lie far apart.
_STRIDE = 37


def is_from_top(receives: int, priority_factor: int) -> bool:
    """Whether receive number `receives` of a group begins with the highest priority."""
    return receives * _STRIDE % 100 < priority_factor


def from_top(queues: int) -> range:
    """The queues, highest priority first."""
    return range(queues - 1, -1, -1)
