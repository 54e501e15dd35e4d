"""How long a read that the disk refuses is tried again.

A cable, a controller, a network disk come back: what cannot be read now is not lost. When the
same thing was refused `READS_MAX` times it counts as damaged, so that what waits behind it can
go on (docs/decisions/0005).
"""

from collections.abc import Hashable

from cosmodrome_server.errors import CorruptFrame, ReadFailed

# Official clients ask again every second: a minute and a half for a disk to come back.
READS_MAX = 100
# Things whose refusals are counted; past it the oldest counts anew.
_COUNTED_MAX = 1_024


class Patience:
    """Counts refusals, each under the name of what was to be read."""

    def __init__(self) -> None:
        self._refusals: dict[Hashable, int] = {}

    def refused(self, name: Hashable, what: str, error: OSError) -> ReadFailed | CorruptFrame:
        """What to raise: `ReadFailed`, or `CorruptFrame` when it was refused too often."""
        count = self._refusals.pop(name, 0) + 1
        self._refusals[name] = count
        if len(self._refusals) > _COUNTED_MAX:
            del self._refusals[next(iter(self._refusals))]
        words = f"{what} cannot be read: {error}"
        return CorruptFrame(words) if count >= READS_MAX else ReadFailed(words)
