"""The blocking twins: like their async clients, and working."""

import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import cosmodrome
from cosmodrome import (
    ConsumeResult,
    Message,
    MessageView,
    OffsetOption,
    TransactionResolution,
    sync,
)
from cosmodrome.testing import TestBroker

Names = Callable[[str], str]
TWINS = [name for name in sync.__all__ if name != "Transaction"]


def public(cls: type) -> dict[str, object]:
    return {
        name: inspect.getattr_static(cls, name)
        for name in dir(cls)
        if not name.startswith("_") and name not in ("client_type", "builder")
    }


def shape(function: object) -> list[tuple[str, object, object]]:
    """Names, kinds and defaults; annotations differ where they must (futures, transactions)."""
    if isinstance(function, classmethod):
        function = function.__func__
    assert callable(function)
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters]


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_has_the_methods_of_its_client_with_the_same_arguments(name: str) -> None:
    client, twin = public(getattr(cosmodrome, name)), public(getattr(sync, name))
    assert client.keys() == twin.keys()
    for method, function in client.items():
        if isinstance(function, property):
            assert isinstance(twin[method], property), method
        elif callable(function) or isinstance(function, classmethod):
            assert shape(twin[method]) == shape(function), method


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_is_made_with_the_same_arguments(name: str) -> None:
    assert shape(getattr(sync, name)) == shape(getattr(cosmodrome, name))


def test_every_client_has_a_twin() -> None:
    clients = {name for name in cosmodrome.__all__ if name.endswith(("Producer", "Consumer"))}
    assert clients | {"AdminClient"} <= set(TWINS)


def test_what_is_sent_is_received(broker: TestBroker, name: Names) -> None:
    topic = name("t")
    with sync.Producer(broker.endpoint, topics=[topic]) as producer:
        producer.send(Message(topic, b"1"))
        producer.send([Message(topic, b"2"), Message(topic, b"3")])
        assert producer.send_nowait(Message(topic, b"4")).result(10).topic == topic
        producer.flush()
    seen: list[bytes] = []
    with sync.SimpleConsumer(broker.endpoint, group=name("g"), subscriptions={topic: "*"}) as c:
        for message in c:
            with c.processing(message):
                seen.append(message.body)
            if len(seen) == 4:
                break
    assert sorted(seen) == [b"1", b"2", b"3", b"4"]


def test_a_processing_block_that_raises_gives_the_message_back(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    with sync.Producer(broker.endpoint) as producer:
        producer.send(Message(topic, b"x"))
    with sync.SimpleConsumer(broker.endpoint, group=name("g"), subscriptions={topic: "*"}) as c:
        (message,) = c.receive()
        with pytest.raises(ZeroDivisionError):
            with c.processing(message):
                raise ZeroDivisionError
        (again,) = c.receive()
        assert again.delivery_attempt == 2
        c.ack(again)


def test_a_transaction_is_committed_or_rolls_back_when_its_block_raises(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    broker.create_topic(topic, "TRANSACTION")
    broker.create_group(name("g"))
    with sync.Producer(
        broker.endpoint,
        topics=[topic],
        transaction_checker=lambda _: TransactionResolution.ROLLBACK,
    ) as producer:
        with producer.begin_transaction() as transaction:
            producer.send(Message(topic, b"kept"), transaction=transaction)
            transaction.commit()
        with pytest.raises(ZeroDivisionError):
            with producer.begin_transaction() as transaction:
                producer.send(Message(topic, b"dropped"), transaction=transaction)
                raise ZeroDivisionError
    with sync.SimpleConsumer(broker.endpoint, group=name("g"), subscriptions={topic: "*"}) as c:
        (message,) = c.receive()
        assert message.body == b"kept"
        c.ack(message)


def test_a_blocking_listener_may_use_blocking_clients(broker: TestBroker, name: Names) -> None:
    source, target = name("source"), name("target")
    done = threading.Event()
    with sync.Producer(broker.endpoint, topics=[source, target]) as producer:

        def forward(message: MessageView) -> ConsumeResult:
            producer.send(Message(target, message.body))
            done.set()
            return ConsumeResult.SUCCESS

        with sync.PushConsumer(
            broker.endpoint, group=name("g"), subscriptions={source: "*"}, listener=forward
        ) as consumer:
            producer.send(Message(source, b"x"))
            assert done.wait(20)
            consumer.pause()
            consumer.resume()
            assert consumer.statistics().received == 1


def test_a_pull_consumer_reads_seeks_and_commits(
    broker: TestBroker, name: Names, tmp_path: Path
) -> None:
    topic = name("t")
    broker.create_topic(topic, queues=1)
    with sync.Producer(broker.endpoint, topics=[topic]) as producer:
        for body in (b"1", b"2"):
            producer.send(Message(topic, body))
    offsets = tmp_path / "offsets.json"
    with sync.PullConsumer.broadcast(
        broker.endpoint, group=name("g"), topics=[topic], offsets=offsets
    ) as c:
        assert c.poll(1, timeout=20)[0].body == b"1"
        c.seek(topic, 0, 1)
        assert c.poll(1, timeout=20)[0].body == b"2"
        assert c.position(topic, 0) == 2
        c.pause((topic, 0))
        c.resume()
        c.commit()
    assert offsets.exists()


def test_lite_topics_are_read(broker: TestBroker, name: Names) -> None:
    topic, group = name("sessions"), name("chat")
    broker.create_topic(topic, "LITE", queues=1)
    broker.create_group(group, fifo=True, lite_bind_topic=topic)
    with sync.Producer(broker.endpoint, topics=[topic]) as producer:
        producer.send(Message(topic, b"x", lite_topic="one"))
    with sync.LiteSimpleConsumer(broker.endpoint, bind_topic=topic, group=group) as c:
        c.subscribe_lite("one", OffsetOption.first())
        assert c.lite_topics == {"one"}
        c.ack(c.receive())


def test_an_operator_works_blocking_too(broker: TestBroker, name: Names) -> None:
    with sync.AdminClient(broker.endpoint) as admin:
        admin.create_topic(name("t"), queues=2, retention=timedelta(days=1))
        assert [len(topic.queues) for topic in admin.topics(name("t"))] == [2]


def test_all_blocking_clients_share_one_thread(broker: TestBroker, name: Names) -> None:
    before = threading.active_count()
    clients = [sync.Producer(broker.endpoint).start() for _ in range(5)]
    # One for the loop, where no test before made it; gRPC's own poller is one per process.
    assert threading.active_count() <= before + 2
    for client in clients:
        client.close()


def test_a_blocking_call_on_the_loop_is_refused(broker: TestBroker, name: Names) -> None:
    failures: list[BaseException] = []
    done = threading.Event()
    topic = name("t")
    with sync.Producer(broker.endpoint, topics=[topic]) as producer:

        async def listener(message: MessageView) -> ConsumeResult:
            try:
                producer.send(Message(topic, b"again"))
            except RuntimeError as error:
                failures.append(error)
            done.set()
            return ConsumeResult.SUCCESS

        producer.send(Message(topic, b"x"))
        with sync.PushConsumer(
            broker.endpoint, group=name("g"), subscriptions={topic: "*"}, listener=listener
        ):
            assert done.wait(20)
    assert "blocking call inside" in str(failures[0])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_listener_that_calls_sys_exit_ends_nothing_of_others(
    own_broker: TestBroker, *, is_async: bool
) -> None:
    called = threading.Event()

    def exits(_message: MessageView) -> ConsumeResult:
        called.set()
        sys.exit(3)

    async def exits_too(message: MessageView) -> ConsumeResult:
        return exits(message)

    listener = exits_too if is_async else exits
    with (
        sync.Producer(own_broker.endpoint) as producer,
        sync.PushConsumer(
            own_broker.endpoint, group="g", subscriptions={"t": "*"}, listener=listener
        ),
    ):
        producer.send(Message("t", b"x"))
        assert called.wait(20)

        assert producer.send(Message("t", b"y")).message_id


def test_a_future_that_its_caller_gave_up_is_no_news(
    broker: TestBroker, name: Names, caplog: pytest.LogCaptureFixture
) -> None:
    with sync.Producer(broker.endpoint, topics=[name("t")], send_timeout=2) as producer:
        with broker.fault("SendMessage", drop=True, times=1):
            given_up = producer.send_nowait(Message(name("t"), b"x"))
            assert given_up.cancel()
            producer.flush()
        assert producer.send_nowait(Message(name("t"), b"y")).result(20).queue_offset >= 0
    assert not [one for one in caplog.records if one.name == "asyncio"]


def test_a_listener_may_close_its_consumer_while_somebody_else_does(
    broker: TestBroker, name: Names
) -> None:
    begun, closing = threading.Event(), threading.Event()

    def listener(_message: MessageView) -> ConsumeResult:
        begun.set()
        assert closing.wait(20)
        consumer.close()
        return ConsumeResult.SUCCESS

    with sync.Producer(broker.endpoint, topics=[name("t")]) as producer:
        producer.send(Message(name("t"), b"x"))
    consumer = sync.PushConsumer(
        broker.endpoint,
        group=name("g"),
        subscriptions={name("t"): "*"},
        listener=listener,
        close_timeout=3600,
    ).start()
    assert begun.wait(20)
    closer = threading.Thread(target=consumer.close)
    closer.start()
    for _ in range(20_000):
        if not consumer.is_running:
            break
        time.sleep(0.001)  # nothing says when it has begun to close
    assert not consumer.is_running
    closing.set()
    closer.join(20)
    assert not closer.is_alive()
    assert (name("g"), name("t")) not in broker.leftovers().in_flight


ENDING = """
import sys
import cosmodrome

class Service:
    def __init__(self):
        self.producer = cosmodrome.sync.Producer(sys.argv[1]).start()
        self.close = self.producer.close  # modules may be gone before this is

    def __del__(self):
        self.close()

service = Service()
"""


def test_a_client_that_is_closed_when_the_interpreter_ends_holds_nobody_up(
    broker: TestBroker,
) -> None:
    arguments = [sys.executable, "-c", ENDING, broker.endpoint]
    ended = subprocess.run(arguments, check=True, timeout=60, capture_output=True, text=True)
    assert ended.stderr == ""
