"""OpenTelemetry spans for sending and consuming; needs `pip install 'cosmodrome[otel]'`.

    Producer(address, interceptors=[TracingInterceptor()])
    PushConsumer(address, …, interceptors=[TracingInterceptor()])

    send orders (PRODUCER) ── traceparent in the message's properties ──▶ process orders (CONSUMER)
                                                                            └─ spans of the listener

| span | kind | when |
|---|---|---|
| send TOPIC | PRODUCER; CLIENT for several messages, each with a `create TOPIC` | SEND |
| receive TOPIC | CLIENT, linked to each message | a receive that brought messages |
| process TOPIC | CONSUMER, the child of its message's span; links for a batch | CONSUME |
| ack, nack, dead_letter, commit, rollback, recall TOPIC | CLIENT | the others |

Names and attributes are those of OpenTelemetry's conventions for messaging. The context goes with
user properties (`traceparent`, `tracestate`, `baggage`), as other RocketMQ instrumentations have
it, and its `traceparent` in the message's `trace_context`, too. A message that carries a context
already keeps it.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"cosmodrome.otel needs {error.name}: pip install 'cosmodrome[otel]'", name=error.name
    ) from error

from cosmodrome.errors import CosmodromeError, StatusError
from cosmodrome.interceptors import ConsumeReturnType, HookContext, HookPoint, Interceptor
from cosmodrome.message import Message, MessageView
from cosmodrome.receipt import SendReceipt

SCOPE = "cosmodrome"
TRACEPARENT = "traceparent"
_SPAN, _TOKEN, _STARTED = "otel.span", "otel.token", "otel.started"
# Operation name and type of the conventions.
_OPERATIONS = {
    HookPoint.SEND: ("send", "send"),
    HookPoint.RECEIVE: ("receive", "receive"),
    HookPoint.CONSUME: ("process", "process"),
    HookPoint.ACK: ("ack", "settle"),
    HookPoint.CHANGE_INVISIBLE_DURATION: ("nack", "settle"),
    HookPoint.FORWARD_TO_DEAD_LETTER_QUEUE: ("dead_letter", "settle"),
    HookPoint.COMMIT_TRANSACTION: ("commit", "settle"),
    HookPoint.ROLLBACK_TRANSACTION: ("rollback", "settle"),
    HookPoint.RECALL: ("recall", "settle"),
}
Attributes = dict[str, Any]


class TracingInterceptor(Interceptor):
    """Makes a span of everything a client does.

    Args:
        tracer_provider: The global one unless given.
        propagator: Writes and reads the context; the global one unless given.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        self._propagator = propagator or propagate.get_global_textmap()

    def before(self, context: HookContext) -> None:
        """Begin a span; a send's messages get its context, a listener runs inside it."""
        if context.point is HookPoint.SEND:
            self._before_send(context)
        elif context.point is HookPoint.RECEIVE:
            context.attributes[_STARTED] = time.time_ns()
        elif context.point is HookPoint.CONSUME:
            self._before_consume(context)
        else:
            links = self._links(context.messages)
            context.attributes[_SPAN] = self._start(context, SpanKind.CLIENT, links)

    def after(self, context: HookContext) -> None:
        """End it, with what went wrong."""
        if context.point is HookPoint.RECEIVE:
            self._after_receive(context)
            return
        token = context.attributes.pop(_TOKEN, None)
        if token is not None:
            contexts.detach(token)
        span: Span | None = context.attributes.pop(_SPAN, None)
        if span is None:
            return
        if isinstance(context.result, SendReceipt):
            span.set_attribute("messaging.message.id", context.result.message_id)
        _end(span, context)

    def _before_send(self, context: HookContext) -> None:
        messages: list[Message] = context.messages
        if len(messages) == 1 and TRACEPARENT not in messages[0].properties:
            span = self._start(context, SpanKind.PRODUCER)
            span.set_attributes(_of_message(messages[0]))
            messages[0] = self._marked(messages[0], span)
        else:
            created = [self._created(context, message) for message in messages]
            context.messages[:] = created
            span = self._start(context, SpanKind.CLIENT, self._links(created))
        context.attributes[_SPAN] = span

    def _created(self, context: HookContext, message: Message) -> Message:
        """The message with a context of its own, the one it has or that of a new span."""
        if TRACEPARENT in message.properties:
            return message
        attributes = {**_common(context, "create", "create"), **_of_message(message)}
        name = f"create {context.topic}"
        with self._tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes) as span:
            return self._marked(message, span)

    def _marked(self, message: Message, span: Span) -> Message:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, trace.set_span_in_context(span))
        return replace(
            message,
            properties={**carrier, **message.properties},
            trace_context=message.trace_context or carrier.get(TRACEPARENT, ""),
        )

    def _before_consume(self, context: HookContext) -> None:
        links, parent = self._links(context.messages), None
        if len(context.messages) == 1:
            parent = self._extracted(context.messages[0])
        span = self._start(context, SpanKind.CONSUMER, links, parent)
        if len(context.messages) == 1:
            span.set_attributes(_of_view(context.messages[0]))
        context.attributes[_SPAN] = span
        inside = trace.set_span_in_context(span, parent)
        context.attributes[_TOKEN] = contexts.attach(inside)

    def _after_receive(self, context: HookContext) -> None:
        started = context.attributes.pop(_STARTED, None)
        if not context.messages and not isinstance(context.error, CosmodromeError):
            return  # a long poll that brought nothing, or that closing ended, is no news
        span = self._start(context, SpanKind.CLIENT, self._links(context.messages), started=started)
        _end(span, context)

    def _start(
        self,
        context: HookContext,
        kind: SpanKind,
        links: Iterable[Link] = (),
        parent: contexts.Context | None = None,
        *,
        started: int | None = None,
    ) -> Span:
        name, operation = _OPERATIONS[context.point]
        attributes = _common(context, name, operation)
        if len(context.messages) > 1:
            attributes["messaging.batch.message_count"] = len(context.messages)
        elif context.messages and isinstance(context.messages[0], MessageView):
            attributes["messaging.message.id"] = context.messages[0].message_id
        return self._tracer.start_span(
            f"{name} {context.topic}",
            parent,
            kind,
            attributes,
            list(links),
            start_time=started,
        )

    def _links(self, messages: Iterable[Message | MessageView]) -> list[Link]:
        found = []
        for message in messages:
            extracted = self._extracted(message)
            origin = trace.get_current_span(extracted).get_span_context()
            if extracted is not None and origin.is_valid:
                found.append(Link(origin))
        return found

    def _extracted(self, message: Message | MessageView) -> contexts.Context | None:
        """The context a message carries; None for none."""
        carrier: Mapping[str, str] = message.properties
        if TRACEPARENT not in carrier and message.trace_context:
            carrier = {TRACEPARENT: message.trace_context}
        if not any(field in carrier for field in self._propagator.fields):
            return None
        return self._propagator.extract(carrier)


def _common(context: HookContext, name: str, operation: str) -> Attributes:
    attributes: Attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": name,
        "messaging.operation.type": operation,
        "messaging.destination.name": context.topic,
        "messaging.client.id": context.client_id,
    }
    if context.group:
        attributes["messaging.consumer.group.name"] = context.group
    return attributes


def _of_message(message: Message) -> Attributes:
    return _described(message) | {
        "messaging.rocketmq.message.type": message.message_type.name.lower()
    }


def _of_view(view: MessageView) -> Attributes:
    return _described(view) | {
        "messaging.message.id": view.message_id,
        "messaging.rocketmq.message.delivery_attempt": view.delivery_attempt,
    }


def _described(message: Message | MessageView) -> Attributes:
    attributes: Attributes = {"messaging.message.body.size": len(message.body)}
    if message.tag:
        attributes["messaging.rocketmq.message.tag"] = message.tag
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = list(message.keys)
    if message.message_group:
        attributes["messaging.rocketmq.message.group"] = message.message_group
    return attributes


def _end(span: Span, context: HookContext) -> None:
    error = context.error
    if error is not None:
        kind = str(error.code) if isinstance(error, StatusError) else type(error).__qualname__
        span.set_attribute("error.type", kind)
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    elif context.returned not in (None, ConsumeReturnType.SUCCESS):
        span.set_attribute("error.type", context.returned.value)
        span.set_status(Status(StatusCode.ERROR, f"the listener: {context.returned.value}"))
    span.end()
