"""Messages just written, kept as they came: most are read again within moments.

A message that is received right after it was sent is found here and costs one look-up: no
read, no checksum, no decoding. Bounded by bytes; the oldest frames go first.
"""

from collections import deque

from cosmodrome_server.model.log import MessageRecord

# Enough for what a consumer that keeps up is behind by; more would only be memory.
RECENT_BYTES = 4 << 20
# What a record costs beside its bytes: the object, its numbers, the entries that hold it.
_RECORD_BYTES = 600


class RecentMessages:
    """Position → message, for the frames written last.

    Attributes:
        messages: The hot path looks here itself.
    """

    def __init__(self, bytes_max: int = RECENT_BYTES) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._frames: deque[tuple[int, list[int]]] = deque()
        self.messages: dict[int, MessageRecord] = {}

    def end_frame(self, positions: list[int], frame_bytes: int) -> None:
        """The messages at `positions` are one frame; forget the oldest that are too many."""
        if not positions:
            return  # Acknowledgements push no message out.
        cost = frame_bytes + _RECORD_BYTES * len(positions)
        self._frames.append((cost, positions))
        self._bytes += cost
        # The frame that was just given to the writer must stay: it cannot be read yet.
        while self._bytes > self._bytes_max and len(self._frames) > 2:
            gone, old = self._frames.popleft()
            self._bytes -= gone
            for position in old:
                del self.messages[position]
