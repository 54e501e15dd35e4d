"""What must be true of everything that was promised and everything that was delivered.

    obligation   a send: each group of its topic must settle it, or find it among its dead letters
    settled      an acknowledgement: never delivered to the group again
    dropped      a rollback, a recall, a deleted topic: never delivered at all
    order        of an ordered group: nothing goes before what must go first

Each of these is a fact of one frame of the log. It stands in the books from the moment the broker
did it, with how to strike it out. A crash leaves all frames up to one: those facts are true,
answered or not, and those of later frames never happened. So the books are exact after every
crash: what is in the log must be there whole, what is not in it must never be seen; and what was
answered must be in it, as far as the durability promises (`Promises`).

Source: the accounting identity of storage.md 1.4.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from cosmodrome_server.store.group_commit import Durability


@dataclass(slots=True)
class Sent:
    """One message as its producer knows it.

    Attributes:
        topic: Where it went.
        number: In the order of sending.
        order: The message group or lite topic in which it has its place, "" for none.
        due_ms: Its delivery time, 0 for at once.
        is_half: Whether it waits for its producer's word.
        intent: True to commit, False to roll back, None for no word yet.
        is_there: The log has it.
        is_ghost: A power cut took it from a log that is not synced, and maybe left its copy.
        stored_ms: The wall clock when it was sent; the log is never behind it.
        recall_handle: Of a delayed one.
        is_recalled: It was taken back.
        is_end_tried: The word was given, at least once.
        is_ended: … and the log has it.
        ended_ms: When the word was first given.
        is_expired: It lay in its queue for as long as messages are kept, or its readers chose to
            begin behind it.
    """

    topic: str
    number: int
    order: str = ""
    due_ms: int = 0
    is_half: bool = False
    intent: bool | None = None
    is_there: bool = False
    is_ghost: bool = False
    stored_ms: int = 0
    recall_handle: str = ""
    is_recalled: bool = False
    is_end_tried: bool = False
    is_ended: bool = False
    ended_ms: int = 0
    is_expired: bool = False

    @property
    def visible_ms(self) -> int:
        """It was not in its queue before this."""
        return max(self.stored_ms, self.due_ms, self.ended_ms)

    @property
    def must_not_arrive(self) -> bool:
        """Nobody may get it."""
        if self.is_ghost:
            return False
        is_open = self.is_half and not (self.intent and self.is_ended)
        return not self.is_there or self.is_recalled or is_open

    @property
    def must_arrive(self) -> bool:
        """Everybody who reads its topic must get it."""
        return not (self.must_not_arrive or self.is_ghost or self.is_expired)


class Promises:
    """Which frames a crash may not take.

    A kill takes no frame that was answered. A power cut takes none that is synced, and of those
    answered with `sync` none, with `interval` the ones of the last N ms, with `os` any.
    """

    def __init__(self, durability: Durability) -> None:
        self._durability = durability
        # (time, frame), ascending.
        self._answered: list[tuple[int, int]] = []

    def begin(self, lsn: int) -> None:
        """A start found all frames up to this one; it lets none go that it has seen."""
        self._answered = [(0, lsn)]

    def answer(self, lsn: int, run_ms: int) -> None:
        """Somebody rests on a frame now."""
        if lsn > self._answered[-1][1]:
            self._answered.append((run_ms, lsn))

    def kept(self, synced_lsn: int, looked_ms: int, *, is_power_cut: bool) -> int:
        """The last frame that must be there after a crash.

        Args:
            synced_lsn: What the log says is on the disk.
            looked_ms: When the writer last looked for what waits for its sync.
            is_power_cut: Whether the machine died, too.
        """
        if self._durability.is_synced or not is_power_cut:
            return max(synced_lsn, self._answered[-1][1])
        until_ms = looked_ms - self._durability.interval_ms if self._durability.interval_ms else 0
        return max([synced_lsn, *(lsn for at_ms, lsn in self._answered if at_ms <= until_ms)])


class Books:
    """What is in the log, and what came of it."""

    def __init__(self, attempts_max: int, ordered: dict[str, str], *, has_ghosts: bool) -> None:
        """Open them.

        Args:
            attempts_max: Of every group.
            ordered: Group → the topic it reads in order.
            has_ghosts: Delayed messages may outlive their frame, by a copy that was synced first.
        """
        self.sent: dict[str, Sent] = {}
        # Group → what it settled, since it was made.
        self.settled: dict[str, set[str]] = {}
        # Acknowledged, or not, for want of space: nobody was told which.
        self.unsure: set[tuple[str, str]] = set()
        # May be dead letters: sent there, or at their last attempt.
        self.exhausted: set[tuple[str, str]] = set()
        self.deliveries = 0
        # With their topic.
        self.dropped: set[str] = set()
        # Sent back from dead letters: they have another life; and who has yet to get them.
        self.redriven: set[str] = set()
        self.owed: set[tuple[str, str]] = set()
        self._attempts_max = attempts_max
        self._ordered = ordered
        self._has_ghosts = has_ghosts
        # (group, order) → what the group has not settled, by its number.
        self._open: dict[tuple[str, str], dict[int, str]] = {}
        self._facts: deque[tuple[int, Callable[[], object]]] = deque()

    # Facts

    def note(self, lsn: int, strike: Callable[[], object]) -> None:
        """A fact stands in the books; `strike` takes it out."""
        self._facts.append((lsn, strike))

    def close_frames(self, lsn: int) -> None:
        """No crash takes the facts of frames up to this one."""
        while self._facts and self._facts[0][0] <= lsn:
            self._facts.popleft()

    def begin(self, lsn: int) -> None:
        """A start found the frames up to this one: what was in later ones never happened."""
        while self._facts and self._facts[-1][0] > lsn:
            self._facts.pop()[1]()
        self._facts.clear()
        self._open = {place: dict(sorted(some.items())) for place, some in self._open.items()}

    def send(self, lsn: int, name: str) -> None:
        """A message is in the log."""
        sent = self.sent[name]
        sent.is_there = True
        groups = [group for group, topic in self._ordered.items() if topic == sent.topic]
        for group in groups:
            self._open.setdefault((group, sent.order), {})[sent.number] = name

        def strike() -> None:
            sent.is_there = False
            sent.is_ghost = self._has_ghosts and sent.due_ms > 0
            for group in groups:
                self._open[group, sent.order].pop(sent.number, None)

        self.note(lsn, strike)

    def settle(self, lsn: int, group: str, name: str) -> None:
        """A group is done with a message."""
        settled, sent = self.settled.setdefault(group, set()), self.sent[name]
        if name in settled:
            return
        settled.add(name)
        place = group, sent.order
        was_open = self._open.get(place, {}).pop(sent.number, None) is not None

        def strike() -> None:
            settled.discard(name)
            if was_open:
                self._open[place][sent.number] = name

        self.note(lsn, strike)

    def forget_group(self, lsn: int, group: str) -> None:
        """A group was deleted, and made again: it has settled nothing."""
        before, self.settled[group] = self.settled.get(group, set()), set()
        self.note(lsn, lambda: self.settled.__setitem__(group, before))

    def reopen(self, lsn: int, group: str, order: str) -> None:
        """A group went back to the beginning of what it reads in this order."""
        settled, topic = self.settled.setdefault(group, set()), self._ordered[group]
        names = [
            name
            for name in settled
            if self.sent[name].topic == topic and self.sent[name].order == order
        ]
        settled.difference_update(names)
        some = self._open.setdefault((group, order), {})
        some.update((self.sent[name].number, name) for name in names)
        self._open[group, order] = dict(sorted(some.items()))

        def strike() -> None:
            settled.update(names)
            for name in names:
                self._open[group, order].pop(self.sent[name].number, None)

        self.note(lsn, strike)

    def drop(self, lsn: int, names: list[str]) -> None:
        """A topic was deleted, with these in it."""
        fresh = [name for name in names if name not in self.dropped]
        self.dropped.update(fresh)
        self.note(lsn, lambda: self.dropped.difference_update(fresh))

    # Checks

    def delivered(self, group: str, name: str, attempt: int, stored_ms: int) -> None:
        """Somebody gets a message."""
        assert name in self.sent, f"{name} was never sent"
        sent = self.sent[name]
        if name not in self.redriven:
            assert not sent.must_not_arrive, f"{name} was delivered to {group}: {sent}"
            assert name not in self.settled.get(group, ()), f"{name} came again to {group}: {sent}"
            assert name not in self.dropped, f"{name} outlived its topic"
        self.owed.discard((group, name))
        assert 1 <= attempt <= self._attempts_max, f"{name} is in attempt {attempt}"
        assert stored_ms >= sent.due_ms, f"{name} came {sent.due_ms - stored_ms} ms early"
        self.deliveries += 1
        if attempt == self._attempts_max:
            self.exhausted.add((group, name))

    def check_order(self, group: str, names: list[str], is_gone: Callable[[Sent], bool]) -> None:
        """One receive of an ordered group: what it passed over must be gone from the queue.

        Args:
            group: Whose.
            names: What it got, in the order it got it.
            is_gone: Whether a message may be gone by its age.
        """
        got: set[str] = set()
        for name in names:
            sent = self.sent[name]
            got.add(name)
            if name in self.redriven or sent.is_ghost:
                continue
            for number, earlier in self._open.get((group, sent.order), {}).items():
                if number >= sent.number:
                    break
                is_excused = (
                    earlier in got
                    or earlier in self.redriven
                    or (group, earlier) in self.exhausted
                    or (group, earlier) in self.unsure
                    or is_gone(self.sent[earlier])
                )
                assert is_excused, f"{name} overtook {earlier} in {group}: {self.sent[earlier]}"

    def close(self, groups: dict[str, list[str]], dead: dict[str, list[str]]) -> None:
        """All time has passed and all that was there was acknowledged.

        Args:
            groups: Group → the topics it reads.
            dead: Group → the ids among its dead letters.
        """
        for group, topics in groups.items():
            letters = dead[group]
            once = [name for name in letters if name not in self.redriven]
            assert len(once) == len(set(once)), f"{group} has a dead letter twice"
            done = self.settled.get(group, set()).union(letters)
            for name, sent in self.sent.items():
                if sent.topic in topics and sent.must_arrive and name not in self.dropped:
                    is_done = name in done or (group, name) in self.unsure
                    assert is_done, f"{name} is lost for {group}: {sent}"
            for name in letters:
                assert not self.sent[name].must_not_arrive, f"{name} is a dead letter"
