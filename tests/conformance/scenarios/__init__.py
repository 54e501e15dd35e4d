"""The catalogue of clients.md section 6 and our additions: importing this fills `CATALOGUE`."""

from tests.conformance.scenarios import (
    delivery,
    extras,
    failures,
    filters,
    limits,
    operations,
    ordered,
    simple,
    startup,
)

__all__ = [
    "delivery",
    "extras",
    "failures",
    "filters",
    "limits",
    "operations",
    "ordered",
    "simple",
    "startup",
]
