"""What must be true of everything that was promised and everything that was delivered.

    obligation   a send that was answered, or a message that was once delivered: each group
                 of its topic must settle it, or find it among its dead letters
    settled      an acknowledgement that was answered: never delivered to the group again
    dropped      a rollback or recall that was answered: never delivered at all

Between an attempt and its answer a crash may fall: then both outcomes are right.
Source: the accounting identity of storage.md 1.4.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Sent:
    """One message as its producer knows it.

    Attributes:
        topic: Where it went.
        due_ms: Its delivery time, 0 for at once.
        is_half: Whether it waits for its producer's word.
        intent: True to commit, False to roll back, None for no word yet.
        is_answered: The send was.
        stored_ms: The wall clock when it was sent; the log is never behind it.
        recall_handle: Of a delayed one.
        is_recall_tried: A recall was called.
        is_recalled: … and answered.
        is_end_tried: The word was given.
        is_ended: … and answered.
        ended_ms: When the word was first given.
        is_delivered: Somebody got it.
        is_expired: It lay in its queue for as long as messages are kept.
    """

    topic: str
    due_ms: int = 0
    is_half: bool = False
    intent: bool | None = None
    is_answered: bool = False
    stored_ms: int = 0
    recall_handle: str = ""
    is_recall_tried: bool = False
    is_recalled: bool = False
    is_end_tried: bool = False
    is_ended: bool = False
    ended_ms: int = 0
    is_delivered: bool = False
    is_expired: bool = False

    @property
    def visible_ms(self) -> int:
        """It was not in its queue before this."""
        return max(self.stored_ms, self.due_ms, self.ended_ms)

    @property
    def must_arrive(self) -> bool:
        if self.is_expired:
            return False
        if self.is_half:
            return self.intent is True and self.is_ended
        if self.is_recall_tried and not self.is_delivered:
            return False
        return self.is_answered or self.is_delivered

    @property
    def must_not_arrive(self) -> bool:
        if self.is_half:
            return not (self.intent is True and self.is_end_tried)
        return self.is_recalled


class Books:
    """What was promised, and what came of it."""

    def __init__(self, attempts_max: int) -> None:
        self.sent: dict[str, Sent] = {}
        self.settled: set[tuple[str, str]] = set()
        # Acknowledged, answered or not: after a crash either is right.
        self.tried: set[tuple[str, str]] = set()
        self.deliveries = 0
        # With their topic, perhaps; with their topic, for certain.
        self.dropped_maybe: set[str] = set()
        self.dropped: set[str] = set()
        # Sent back from dead letters: they have another life; and who has yet to get them.
        self.redriven: set[str] = set()
        self.owed: set[tuple[str, str]] = set()
        self._attempts_max = attempts_max

    def delivered(self, group: str, name: str, attempt: int, stored_ms: int) -> None:
        assert name in self.sent, f"{name} was never sent"
        sent = self.sent[name]
        if name not in self.redriven:
            assert not sent.must_not_arrive, f"{name} was delivered to {group}: {sent}"
            assert (group, name) not in self.settled, f"{name} was delivered again to {group}"
            assert name not in self.dropped, f"{name} outlived its topic"
        self.owed.discard((group, name))
        assert 1 <= attempt <= self._attempts_max, f"{name} is in attempt {attempt}"
        assert stored_ms >= sent.due_ms, f"{name} came {sent.due_ms - stored_ms} ms early"
        self.deliveries += 1

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
            for name, sent in self.sent.items():
                if sent.topic in topics and sent.must_arrive and name not in self.dropped_maybe:
                    is_there = (group, name) in self.tried or name in letters
                    assert is_there, f"{name} is lost for {group}: {sent}"
            for name in letters:
                assert not self.sent[name].must_not_arrive, f"{name} is a dead letter"
