"""Which messages share a request: examples, and a model that checks order under any timing."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cosmodrome._core.send_queue import SHARE_MIN, Bounds, SendQueue, Waiting
from cosmodrome.message import MessageType

NORMAL, FIFO, DELAY = MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY


def waiting(
    ticket: int, kind: MessageType = NORMAL, group: str = "", size: int = 1
) -> Waiting[int]:
    return Waiting(ticket, kind, group, size)


def taken(queue: SendQueue[int]) -> list[int]:
    return [one.ticket for one in queue.take()]


def test_what_waits_goes_together_up_to_the_bounds() -> None:
    queue: SendQueue[int] = SendQueue(Bounds(messages=3, body_bytes=100, requests=9))
    for number in range(4):
        queue.add(waiting(number))
    assert taken(queue) == [0, 1, 2]
    assert taken(queue) == [3]


def test_many_that_wait_are_shared_out_among_the_requests_that_may_begin() -> None:
    queue: SendQueue[int] = SendQueue(Bounds(messages=500, requests=4))
    for number in range(1_000):
        queue.add(waiting(number))
    assert [len(queue.take()) for _ in range(5)] == [250, 250, 250, 250, 0]


def test_few_that_wait_go_in_one_request() -> None:
    queue: SendQueue[int] = SendQueue(Bounds(messages=500, requests=4))
    for number in range(SHARE_MIN + 6):
        queue.add(waiting(number))
    assert [len(queue.take()) for _ in range(3)] == [SHARE_MIN, 6, 0]


def test_a_message_larger_than_the_bound_goes_alone() -> None:
    queue: SendQueue[int] = SendQueue(Bounds(messages=9, body_bytes=10, requests=9))
    queue.add(waiting(0, size=6))
    queue.add(waiting(1, size=50))
    queue.add(waiting(2, size=4))
    assert taken(queue) == [0, 2]
    assert taken(queue) == [1]


def test_kinds_do_not_mix_and_delayed_ones_go_alone() -> None:
    queue: SendQueue[int] = SendQueue(Bounds(requests=9))
    queue.add(waiting(0))
    queue.add(waiting(1, DELAY))
    queue.add(waiting(2))
    queue.add(waiting(3, DELAY))
    assert [taken(queue), taken(queue), taken(queue)] == [[0, 2], [1], [3]]


def test_ordered_messages_go_one_by_one_until_the_broker_is_known_to_place_each() -> None:
    queue: SendQueue[int] = SendQueue(Bounds(requests=9))
    for number, group in enumerate("aab"):
        queue.add(waiting(number, FIFO, group))
    assert [taken(queue), taken(queue), taken(queue)] == [[0], [2], []]
    queue.batches_fifo = True
    queue.done([waiting(0, FIFO, "a")])
    assert taken(queue) == [1]


def test_no_more_requests_than_allowed_are_under_way() -> None:
    queue: SendQueue[int] = SendQueue(Bounds(messages=1, requests=2))
    for number in range(3):
        queue.add(waiting(number))
    first = queue.take()
    assert taken(queue) == [1]
    assert taken(queue) == []
    queue.done(first)
    assert taken(queue) == [2]
    assert not queue.is_idle


class SendQueueMachine(RuleBasedStateMachine):
    """Any order of adding, taking and ending keeps each group's order and loses nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: SendQueue[int] = SendQueue(Bounds(messages=3, body_bytes=5, requests=2))
        self.added: list[Waiting[int]] = []
        self.sent: list[int] = []
        self.under_way: list[list[Waiting[int]]] = []

    @rule(
        kind=st.sampled_from([NORMAL, FIFO, DELAY]),
        group=st.sampled_from("abc"),
        size=st.integers(1, 8),
    )
    def add(self, kind: MessageType, group: str, size: int) -> None:
        one = waiting(len(self.added), kind, group if kind is FIFO else "", size)
        self.added.append(one)
        self.queue.add(one)

    @rule(batches=st.booleans())
    def learn(self, batches: bool) -> None:
        self.queue.batches_fifo = batches

    @rule()
    def take(self) -> None:
        batch = self.queue.take()
        if batch:
            self.under_way.append(batch)
            self.sent += [one.ticket for one in batch]

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.under_way) - 1))
        self.queue.done(self.under_way.pop(index))

    @invariant()
    def nothing_is_lost_or_sent_twice(self) -> None:
        assert len(self.sent) == len(set(self.sent))
        assert len(self.sent) + len(self.queue) == len(self.added)

    @invariant()
    def each_group_keeps_its_order(self) -> None:
        for group in "abc":
            of_group = [t for t in self.sent if self.added[t].message_group == group]
            assert of_group == sorted(of_group)

    @invariant()
    def no_group_is_in_two_requests(self) -> None:
        groups = [{o.message_group for o in b if o.message_group} for b in self.under_way]
        assert sum(map(len, groups)) == len(set().union(*groups)) if groups else True
        assert len(self.under_way) <= 2


TestSendQueueMachine = SendQueueMachine.TestCase
TestSendQueueMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
