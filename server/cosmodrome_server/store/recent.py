"""Messages just written, kept as they came: most are read again within moments.

A message that is received right after it was sent is found here and costs one look-up: no
read, no checksum, no decoding. Two generations, so that what is too old goes all at once and
nothing is noted of each frame, which cost a send some 3 %.
"""

from collections.abc import Iterable

from cosmodrome_server.model.log import MessageRecord

# Enough for what a consumer that keeps up is behind by; more would only be memory.
RECENT_BYTES = 8 << 20
# What a record costs beside its bytes: the object, its numbers, the entries that hold it.
_RECORD_BYTES = 600


class RecentMessages:
    """Position → message, for the frames written last: at least half of `bytes_max`.

    Attributes:
        messages: The younger generation, where new ones go; the hot path adds to it itself.
    """

    def __init__(self, bytes_max: int = RECENT_BYTES) -> None:
        self._generation_bytes = bytes_max // 2
        self._frame_bytes = 0
        self._counted = 0
        self._older: dict[int, MessageRecord] = {}
        self.messages: dict[int, MessageRecord] = {}

    def get(self, position: int) -> MessageRecord | None:
        """The message at a position, if it is recent."""
        return self.messages.get(position) or self._older.get(position)

    def find(self, positions: Iterable[int]) -> list[MessageRecord | None]:
        """`get` of each position."""
        young, older = self.messages.get, self._older.get
        return [young(position) or older(position) for position in positions]

    def end_frame(self, frame_bytes: int) -> None:
        """What was added since the last call is one frame, given to the writer now."""
        count = len(self.messages)
        if count == self._counted:
            return  # Acknowledgements push no message out.
        self._counted = count
        self._frame_bytes += frame_bytes
        if self._frame_bytes + _RECORD_BYTES * count > self._generation_bytes:
            # This frame cannot be read from the disk yet; those that go now can.
            self._older, self.messages = self.messages, {}
            self._frame_bytes = self._counted = 0
