"""Many verbs, one durable write: what waits for the open frame, and when it is written.

    turn of the loop      verbs stage records and leave replies in the open frame
    end of the turn       the writer is idle: the frame is its own (no linger)
                          it writes: the open frame goes on filling
    writer thread         fsync ─▶ 1. note that the frame is durable  2. hand the replies
                          over, one list per sink  3. wake the loop
    loop                  the frame's messages become visible, waiters wake; next frame

A small frame is perhaps written on the loop itself, by the same three steps.

The loop is woken last: awake, it would take the interpreter from the thread that has yet to
answer. Whoever acts on a reply finds its effect nevertheless: every call first takes up what
was noted (`catch_up`), and it was noted before the reply left.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from threading import get_ident

from cosmodrome_server.broker.interface import ReplySink
from cosmodrome_server.core.shard import Ends, Shard
from cosmodrome_server.model.log import Log

# Frames between two looks at how long they took; more are forgotten, oldest first.
_SECONDS_KEPT = 65_536
Replies = dict[ReplySink, list[tuple[object, bytes]]]


class _Frame:
    """What depends on one frame; called by whoever wrote it when it is durable."""

    __slots__ = ("_began_s", "_commit", "_replies", "ends")

    def __init__(self, commit: "GroupCommit", replies: Replies, ends: Ends) -> None:
        self._commit = commit
        self._replies = replies
        self._began_s = commit.now_s()
        self.ends = ends

    def on_durable(self) -> None:
        """On the writer thread or the loop."""
        self._commit.note(self._began_s)
        self._commit.durable.append(self)
        try:
            for sink, replies in self._replies.items():
                sink.reply_many(replies)
        finally:
            self._commit.wake()


class GroupCommit:
    """Gives frames to the writer and takes up what waited for them.

    Args:
        log: Where frames go.
        shard: Whose messages become visible.
        on_turn: Called on the loop after a frame became visible and at the end of every
            turn in which something was staged.
        on_sealed: Called when a frame was given to the writer, before anything is staged.
        on_committed: Called on the loop after `on_turn`, when what there is to write is on its way.

    Attributes:
        durable: Frames on the disk that the loop has not taken up; the writer adds to it.
    """

    def __init__(
        self,
        log: Log,
        shard: Shard,
        on_turn: Callable[[], None],
        on_sealed: Callable[[], None],
        on_committed: Callable[[], None],
    ) -> None:
        self._log = log
        self._shard = shard
        self._on_turn = on_turn
        self._on_sealed = on_sealed
        self._on_committed = on_committed
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._replies: Replies = {}
        self._in_flight = 0
        self._seconds: deque[float] = deque(maxlen=_SECONDS_KEPT)
        self.frames = 0
        self._settled_waiters: list[asyncio.Future[None]] = []
        self._is_scheduled = False
        self.durable: deque[_Frame] = deque()

    def now_s(self) -> float:
        """The loop's time, from any thread."""
        return self._loop.time()

    def note(self, began_s: float) -> None:
        """From any thread: a frame that was given to the writer then is durable."""
        self._seconds.append(self._loop.time() - began_s)

    def take_seconds(self) -> list[float]:
        """How long each frame took since the last call."""
        taken, self._seconds = self._seconds, deque(maxlen=_SECONDS_KEPT)
        return list(taken)

    @property
    def is_writing(self) -> bool:
        """Whether a frame is on its way to the disk; `on_turn` is called when it is durable."""
        return self._in_flight > 0

    @property
    def is_settled(self) -> bool:
        """Whether everything staged is durable and every reply handed over."""
        return not (self._in_flight or self._replies or self._log.has_staged)

    async def next_frame(self) -> None:
        """Wait until a frame is durable, or there is nothing to wait for."""
        if not self.is_settled:
            waiter = self._loop.create_future()
            self._settled_waiters.append(waiter)
            await waiter

    def touch(self) -> None:
        """Something was staged: commit at the end of this turn of the loop."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._end_turn)

    def reply_when_durable(self, sink: ReplySink, token: object, reply: bytes) -> None:
        """Hold a reply until everything staged so far is durable."""
        held = self._replies.get(sink)
        if held is None:
            self._replies[sink] = [(token, reply)]
            self.touch()
        else:
            held.append((token, reply))

    def _end_turn(self) -> None:
        self._is_scheduled = False
        self._on_turn()
        self._commit()
        self._on_committed()

    def _commit(self) -> None:
        if not self._log.has_staged:
            # Replies without records of their own may rest on records of a frame that is
            # being written: an ack repeated while the first one is not durable yet.
            if self._replies and not self._in_flight:
                replies, self._replies = self._replies, {}
                for sink, held in replies.items():
                    sink.reply_many(held)
            if not self._in_flight:
                self._release()
            return
        frame = _Frame(self, self._replies, {})
        frame.ends = self._shard.take_staged_ends()
        # While another frame is being written this one stays open: `_take_up` asks again.
        if self._log.commit(frame.on_durable):
            self._in_flight += 1
            self._replies = {}
            self._on_sealed()
        else:
            self._shard.put_back_ends(frame.ends)

    def wake(self) -> None:
        """Let the loop take up what is durable."""
        if get_ident() == self._thread:
            self._loop.call_soon(self._take_up)
        else:
            self._loop.call_soon_threadsafe(self._take_up)

    def catch_up(self) -> None:
        """What is durable becomes visible; cheap when there is nothing new."""
        while self.durable:
            frame = self.durable.popleft()
            self._in_flight -= 1
            self.frames += 1
            self._shard.make_visible(frame.ends)

    def _take_up(self) -> None:
        self.catch_up()
        self._on_turn()
        self._commit()
        self._on_committed()
        self._release()

    def fail(self) -> None:
        """A write failed: nothing that waits will ever be answered."""
        self._replies.clear()
        self._release()

    def _release(self) -> None:
        waiters, self._settled_waiters = self._settled_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
