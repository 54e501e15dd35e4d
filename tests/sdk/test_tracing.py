"""OpenTelemetry: spans by the messaging conventions, context in the messages."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from cosmodrome import (
    ConsumeResult,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionResolution,
    errors,
)
from cosmodrome.otel import TRACEPARENT, TracingInterceptor
from cosmodrome.testing import TestBroker
from tests.sdk.test_listeners import reaches
from tests.sdk.test_push_consumer import Seen


@dataclass
class Traces:
    """An interceptor and the spans it made."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    provider: TracerProvider = field(default_factory=TracerProvider)

    def __post_init__(self) -> None:
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.interceptor = TracingInterceptor(self.provider)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span


@pytest.fixture
def traces() -> Traces:
    return Traces()


def identity(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


async def test_a_listener_runs_inside_the_trace_of_the_send(
    own_broker: TestBroker, traces: Traces
) -> None:
    seen: list[MessageView] = []

    async def listener(message: MessageView) -> ConsumeResult:
        seen.append(message)
        with traces.provider.get_tracer("user").start_as_current_span("work"):
            pass
        return ConsumeResult.SUCCESS

    async with (
        Producer(own_broker.endpoint, interceptors=[traces.interceptor]) as producer,
        PushConsumer(
            own_broker.endpoint,
            group="g",
            subscriptions={"t": "*"},
            listener=listener,
            interceptors=[traces.interceptor],
        ) as consumer,
    ):
        receipt = await producer.send(Message("t", b"hello", tag="new", keys="42"))
        await reaches(lambda: bool(traces.spans("ack t")))
    send, process = traces.one("send t"), traces.one("process t")
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert process.parent is not None
    assert (process.parent.trace_id, process.parent.span_id) == identity(send)
    work = traces.one("work")
    assert work.parent is not None
    assert work.parent.span_id == identity(process)[1]
    assert linked(process) == linked(traces.one("receive t")) == [identity(send)]
    assert linked(traces.one("ack t")) == [identity(send)]
    assert dict(send.attributes or {}) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "t",
        "messaging.client.id": producer.client_id,
        "messaging.message.body.size": 5,
        "messaging.message.id": receipt.message_id,
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("42",),
        "messaging.rocketmq.message.type": "normal",
    }
    assert process.attributes is not None
    assert process.attributes["messaging.consumer.group.name"] == "g"
    assert process.attributes["messaging.client.id"] == consumer.client_id
    assert process.attributes["messaging.rocketmq.message.delivery_attempt"] == 1
    (view,) = seen
    assert view.properties[TRACEPARENT] == view.trace_context
    assert view.trace_context.split("-")[1] == f"{identity(send)[0]:032x}"


async def test_a_plain_listener_has_the_trace_in_its_thread(
    own_broker: TestBroker, traces: Traces
) -> None:
    inside: list[int] = []

    def listener(message: MessageView) -> ConsumeResult:
        inside.append(trace.get_current_span().get_span_context().span_id)
        return ConsumeResult.SUCCESS

    async with (
        Producer(own_broker.endpoint) as producer,
        PushConsumer(
            own_broker.endpoint,
            group="g",
            subscriptions={"t": "*"},
            listener=listener,
            interceptors=[traces.interceptor],
        ),
    ):
        await producer.send(Message("t", b"x"))
        await reaches(lambda: bool(traces.spans("process t")))
    assert inside == [identity(traces.one("process t"))[1]]
    assert traces.one("process t").parent is None  # nobody traced the send


async def test_each_message_of_a_list_has_a_context_of_its_own(
    own_broker: TestBroker, traces: Traces
) -> None:
    batches: list[int] = []

    async def listener(messages: Sequence[MessageView]) -> ConsumeResult:
        batches.append(len(messages))
        return ConsumeResult.SUCCESS

    async with Producer(own_broker.endpoint, interceptors=[traces.interceptor]) as producer:
        theirs = {TRACEPARENT: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        await producer.send(
            [Message("t", b"1"), Message("t", b"2"), Message("t", b"3", properties=theirs)]
        )
    created = [identity(span) for span in traces.spans("create t")]
    theirs_id = (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    send = traces.one("send t")
    assert send.kind is SpanKind.CLIENT
    assert linked(send) == [*created, theirs_id]
    async with PushConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"t": "*"},
        batch_listener=listener,
        interceptors=[traces.interceptor],
    ):
        await reaches(lambda: sum(batches) == 3 and bool(traces.spans("process t")))
    links = [link for span in traces.spans("process t") for link in linked(span)]
    assert sorted(links) == sorted([*created, theirs_id])


async def test_what_fails_says_how(own_broker: TestBroker, traces: Traces) -> None:
    own_broker.create_group("g", backoff=(timedelta(milliseconds=10),), max_attempts=2)
    own_broker.create_topic("t", "FIFO")
    seen = Seen(lambda _: ConsumeResult.FAILURE)
    async with Producer(own_broker.endpoint, interceptors=[traces.interceptor]) as producer:
        with pytest.raises(errors.IllegalArgument):
            await producer.send(Message("t", b"x"))
        await producer.send_nowait(Message("u", b"x"))
    async with PushConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"u": "*"},
        listener=seen,
        interceptors=[traces.interceptor],
    ):
        await seen.count(1)
        await reaches(lambda: bool(traces.spans("nack u")))
    wrong = traces.one("send t")
    assert wrong.status.status_code is StatusCode.ERROR
    assert wrong.attributes is not None
    assert wrong.attributes["error.type"] == "IllegalArgument"
    process = traces.spans("process u")[0]
    assert process.status.status_code is StatusCode.ERROR
    assert process.attributes is not None
    assert process.attributes["error.type"] == "failed"


async def test_half_messages_their_end_and_recalls_are_traced(
    own_broker: TestBroker, traces: Traces
) -> None:
    async with Producer(
        own_broker.endpoint,
        interceptors=[traces.interceptor],
        transaction_checker=lambda _: TransactionResolution.UNKNOWN,
    ) as producer:
        async with producer.begin_transaction() as transaction:
            await producer.send(Message("t", b"x"), transaction=transaction)
            await transaction.commit()
        later = await producer.send(Message("t", b"x", delay=timedelta(hours=1)))
        await producer.recall("t", later.recall_handle)
    assert len(traces.spans("send t")) == 2
    assert traces.one("commit t").kind is SpanKind.CLIENT
    assert traces.one("recall t").status.status_code is StatusCode.UNSET


async def test_a_receive_without_messages_leaves_no_span(
    own_broker: TestBroker, traces: Traces
) -> None:
    own_broker.create_topic("t")
    async with SimpleConsumer(
        own_broker.endpoint,
        group="g",
        subscriptions={"t": "*"},
        await_duration=0.05,
        interceptors=[traces.interceptor],
    ) as consumer:
        assert await consumer.receive() == []
    assert not traces.exporter.get_finished_spans()
    await asyncio.sleep(0)
