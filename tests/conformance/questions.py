"""Questions to a server about the protocol: one a line in questions.txt, asked and answered.

    name | topic[/group] | steps | the reference's answer | ours, if it is another

The topic's and the group's kind are N(ormal), F(IFO), D(elay), T(ransaction) or - (none); each
question has a topic, a group and a client id of its own. Steps are separated by `;`, and the one
with a `?` is the question: its code is the answer, behind it the bodies received, or the number
of entries of a send. A word `x*127` in a value is that many x, `\\x01` a byte. Handles, once
received, are `h1`, `h2` …; `n` is that of the last change, `t` the last transaction, `r` the last
recall handle.
"""

import asyncio
import re
import shlex
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import methods
from cosmodrome_proto import service_pb2 as rpc

FILE = Path(__file__).with_name("questions.txt")
KINDS = {"N": "NORMAL", "F": "FIFO", "D": "DELAY", "T": "TRANSACTION", "-": ""}
_METHODS = {one.name: one for one in methods("apache.rocketmq.v2.MessagingService")}
_REPEATED = re.compile(r"^(.+)\*(\d+)$")
_BYTE = re.compile(r"\\x([0-9a-f]{2})")
_SETTLE_S = 0.3
_AT_A_TIME = 64
_UNBOUNDED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_NOBODY = "0 1700000000000 300000 0 0 nobody 0 0 0"
_SIX: tuple[tuple[str, str, str], ...] = (
    ("Aa", "a", "5"),
    ("BB", "a", "6"),
    ("x", "a", "5.5"),
    ("", "a", "x"),
)
_SIX += (("y", "b", "true"), ("y", "a", "4000000000"))


@dataclass(frozen=True)
class Question:
    """A line of the file."""

    name: str
    topic: str
    group: str
    steps: tuple[str, ...]
    reference: str
    ours: str


def questions(text: str) -> list[Question]:
    """Those of the file, in its order."""
    found = []
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, kinds, steps, reference, *ours = (part.strip() for part in line.split(" | "))
        topic, _, group = kinds.partition("/")
        group = group or ("F" if topic == "F" else "N")
        asked = tuple(step.strip() for step in steps.split(";"))
        one = Question(name, KINDS[topic], KINDS[group], asked, reference, (*ours, reference)[0])
        found.append(one)
    return found


Options = dict[str, str]
Verb = Callable[["Asking", list[str], Options], Coroutine[Any, Any, str]]


@dataclass
class Asking:
    """One question under way."""

    channel: grpc.aio.Channel
    topic: str
    group: str
    client: str
    others: dict[str, str] = field(default_factory=dict)
    handles: dict[str, str] = field(default_factory=dict)
    _ids: int = 0
    _streams: list[Any] = field(default_factory=list)

    async def answer(self, question: Question) -> str:
        """Take the steps; the answer of the one in question."""
        answer = ""
        try:
            for step in question.steps:
                verb, *words = shlex.split(step)
                options = dict(word.split("=", 1) for word in words if "=" in word)
                plain = [self.handles.get(word, word) for word in words if "=" not in word]
                if verb.rstrip("?") == "send":
                    plain = words
                said = await _VERBS[verb.rstrip("?")](self, plain, options)
                answer = said if verb.endswith("?") else answer
        finally:
            for stream in self._streams:
                stream.cancel()
        return answer

    def resource(self, options: Options, key: str) -> pb.Resource:
        """The topic or group of a call: its own, one of `others` ($fifo), or any text."""
        own = self.topic if key == "topic" else self.group
        name = text_of(options.get(key, own))
        return pb.Resource(name=self.others.get(name, name))

    def headers(self, version: str = "5.1.1", **more: str) -> tuple[tuple[str, str], ...]:
        """As a client of some language would send them."""
        values = {"client-id": self.client, "language": "JAVA", "client-version": version} | more
        return tuple((f"x-mq-{key}", value) for key, value in values.items() if value)

    async def call(
        self,
        name: str,
        request: Message,
        *,
        timeout: float | None = 15.0,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> list[Any]:
        """One call, its answers; a gRPC error is its name instead."""
        method = _METHODS[name]
        make = self.channel.unary_stream if method.server_streams else self.channel.unary_unary
        stub = make(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            call: Any = stub(request, timeout=timeout, metadata=headers or self.headers())
            return [one async for one in call] if method.server_streams else [await call]
        except grpc.aio.AioRpcError as error:
            return [error.code().name]

    def message(self, options: Options) -> pb.Message:
        """What a producer would send."""
        self._ids += 1
        body = b"x" * int(options["size"]) if "size" in options else None
        properties = {
            text_of(key[5:]): text_of(value)
            for key, value in options.items()
            if key.startswith("prop:")
        }
        if "properties" in options:
            properties = {f"k{number}": "v" for number in range(int(options["properties"]))}
        made = pb.Message(
            topic=self.resource(options, "topic"),
            body=text_of(options.get("body", "hello")).encode() if body is None else body,
            user_properties=properties,
        )
        system = made.system_properties
        system.message_id = text_of(options.get("id", f"{self.client}-{self._ids}"))
        system.born_timestamp.GetCurrentTime()
        system.keys.extend(text_of(options[key]) for key in ("key",) if key in options)
        _set(system, options)
        if "due" in options:
            due_ms = int((time.time() + float(options["due"])) * 1000)
            system.delivery_timestamp.FromMilliseconds(due_ms)
        return made

    async def settings(self, kind: int, options: Options) -> str:
        """Open a Telemetry stream with settings of that type; the code of what comes back."""
        command = rpc.TelemetryCommand()
        value = command.settings
        value.client_type = kind  # type: ignore[assignment] # numbers no client has, too
        value.request_timeout.FromSeconds(3)
        if options.get("half", "publish" if kind == pb.PRODUCER else "") == "publish":
            if "no-topic" not in options:
                value.publishing.topics.append(self.resource(options, "topic"))
            value.publishing.SetInParent()
        elif options.get("half") != "none":
            value.subscription.group.CopyFrom(self.resource(options, "group"))
            value.subscription.long_polling_timeout.FromSeconds(30)
            if "no-topic" not in options:
                value.subscription.subscriptions.add(
                    topic=self.resource(options, "topic"), expression=_filter(options)
                )
        if options.get("half") == "empty":
            value.Clear()
        method = _METHODS["Telemetry"]
        stub: Any = self.channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        language = {"language": options["language"]} if "language" in options else {}
        stream = stub(metadata=self.headers(**language))
        self._streams.append(stream)
        try:
            await stream.write(command)
            back: Any = await asyncio.wait_for(stream.read(), 5)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        if isinstance(back, rpc.TelemetryCommand):
            return pb.Code.Name(back.status.code)
        status: grpc.StatusCode = await stream.code()
        return status.name


def text_of(value: str) -> str:
    """A value as it is meant: repeated, with bytes that a file does not show."""
    repeated = _REPEATED.match(value)
    if repeated:
        return repeated[1] * int(repeated[2])
    return _BYTE.sub(lambda found: chr(int(found[1], 16)), value)


def _set(system: pb.SystemProperties, options: Options) -> None:
    """The fields of the system properties that questions set."""
    fields: dict[str, tuple[str, Callable[[str], str | int]]] = {
        "tag": ("tag", text_of),
        "group": ("message_group", text_of),
        "lite": ("lite_topic", text_of),
        "handle": ("receipt_handle", text_of),
        "queue": ("queue_id", int),
        "attempt": ("delivery_attempt", int),
        "priority": ("priority", int),
        "encoding": ("body_encoding", int),
    }
    for key, (name, read) in fields.items():
        if key in options:
            setattr(system, name, read(options[key]))
    if "type" in options:
        kind = options["type"]
        number = pb.MessageType.Value(kind) if kind.isalpha() else int(kind)
        system.message_type = number  # type: ignore[assignment] # numbers no client has, too
    if "digest" in options:
        digest, _, checksum = options["digest"].partition(":")
        system.body_digest.type = int(digest)  # type: ignore[assignment] # as above
        system.body_digest.checksum = checksum
    if "recovery" in options:
        system.orphaned_transaction_recovery_duration.FromSeconds(int(options["recovery"]))


def _filter(options: Options) -> pb.FilterExpression:
    if "sql" in options:
        return pb.FilterExpression(type=pb.SQL, expression=options["sql"])
    return pb.FilterExpression(type=pb.TAG, expression=options.get("tag", "*"))


def code_of(answers: list[Any]) -> str:
    """The code of an answer, or the gRPC status it ended with."""
    for one in answers:
        if isinstance(one, str):
            return one
        if one.HasField("status"):
            number = one.status.code
            return pb.Code.Name(number) if number in pb.Code.values() else str(number)
    return "nothing"


async def _send(asking: Asking, words: list[str], options: Options) -> str:
    """`send body=a + body=b` is one request of two; `send none` one of none."""
    each: list[Options] = [] if words == ["none"] else [{}]
    for word in words:
        if word == "+":
            each.append({})
        elif "=" in word:
            key, _, value = word.partition("=")
            each[-1][key] = value
    request = rpc.SendMessageRequest(messages=[asking.message(options) for options in each])
    answers = await asking.call("SendMessage", request)
    entries = [] if isinstance(answers[0], str) else list(answers[0].entries)
    if entries:
        asking.handles["t"] = entries[0].transaction_id
        asking.handles["r"] = entries[0].recall_handle
    return f"{code_of(answers)} {len(entries)}" if len(each) > 1 else code_of(answers)


async def _six(asking: Asking, words: list[str], _: Options) -> str:
    """Six messages that filters tell apart, their bodies 1 to 6."""
    for number, (tag, key, value) in enumerate(_SIX, 1):
        chosen = {"body": str(number), f"prop:{key}": value} | ({"tag": tag} if tag else {})
        await asking.call("SendMessage", rpc.SendMessageRequest(messages=[asking.message(chosen)]))
    await asyncio.sleep(_SETTLE_S)  # the reference indexes later
    return ""


async def _receive(asking: Asking, words: list[str], options: Options) -> str:
    queue = pb.MessageQueue(topic=asking.resource(options, "topic"))
    queue.id = int(options.get("queue", -1))
    request = rpc.ReceiveMessageRequest(
        group=asking.resource(options, "group"),
        message_queue=queue,
        filter_expression=_filter(options),
        batch_size=int(options.get("batch", 1)),
        auto_renew="renew" in words,
        attempt_id=options.get("attempt", ""),
    )
    if "invisible" in options or "renew" not in words:
        invisible = float(options.get("invisible", 30))
        request.invisible_duration.FromMilliseconds(round(invisible * 1000))
    request.long_polling_timeout.FromMilliseconds(round(float(options.get("poll", 5)) * 1000))
    deadline = None if options.get("deadline") == "none" else float(options.get("deadline", 15))
    headers = asking.headers(options.get("version", "5.1.1"))
    answers = await asking.call("ReceiveMessage", request, timeout=deadline, headers=headers)
    messages = [one.message for one in answers if not isinstance(one, str) and _has_message(one)]
    for message in messages:
        name = f"h{sum(key[0] == 'h' for key in asking.handles) + 1}"
        asking.handles[name] = message.system_properties.receipt_handle
    bodies = sorted(message.body.decode() for message in messages)
    return " ".join((code_of(answers), ",".join(bodies))) if bodies else code_of(answers)


async def asked_all(
    endpoint: str, all_of_them: list[Question], create: Callable[[str, str], None]
) -> dict[str, str]:
    """Ask a server all of them, many at a time: the answer of each name.

    `create` makes a topic of a kind, or, for a kind that begins with "group ", a group.
    """
    others = {"$other": "questions-other", "$delayed": "questions-delayed"}
    others["$reader"] = "questions-reader"  # a group, where whoever asks has made it
    create("questions-other", "NORMAL")
    create("questions-delayed", "DELAY")
    at_a_time = asyncio.Semaphore(_AT_A_TIME)

    async def one(number: int, question: Question) -> str:
        topic, group = f"question-{number}", f"asker-{number}"
        if question.topic:
            create(topic, question.topic)
        if question.group:
            create(group, f"group {question.group}")
        async with at_a_time:
            known = others | {"$dlq": f"%DLQ%{group}"}
            asking = Asking(channel, topic, group, f"client-{number}@1@1@x", known)
            return await asking.answer(question)

    async with grpc.aio.insecure_channel(endpoint, options=_UNBOUNDED) as channel:
        answers = await asyncio.gather(*[one(*pair) for pair in enumerate(all_of_them)])
    return {question.name: said for question, said in zip(all_of_them, answers, strict=True)}


def _has_message(answer: rpc.ReceiveMessageResponse) -> bool:
    return answer.WhichOneof("content") == "message"


async def _ack(asking: Asking, words: list[str], options: Options) -> str:
    entries = [
        rpc.AckMessageEntry(message_id=f"m{number}", receipt_handle=_handle(word))
        for number, word in enumerate(words)
        if word != "none"
    ]
    request = rpc.AckMessageRequest(
        group=asking.resource(options, "group"),
        topic=asking.resource(options, "topic"),
        entries=entries,
    )
    return code_of(await asking.call("AckMessage", request))


def _handle(handle: str) -> str:
    """`forged` is the shape of a handle of the reference."""
    return _NOBODY if handle == "forged" else handle


async def _cut(asking: Asking, words: list[str], _: Options) -> str:
    """`cut`: the first handle becomes half of itself."""
    asking.handles["h1"] = asking.handles["h1"][: len(asking.handles["h1"]) // 2]
    return ""


async def _alter(asking: Asking, words: list[str], _: Options) -> str:
    """`alter`: one character in the middle of the first handle becomes another."""
    handle = asking.handles["h1"]
    at = len(handle) // 2
    asking.handles["h1"] = handle[:at] + ("A" if handle[at] != "A" else "B") + handle[at + 1 :]
    return ""


async def _change(asking: Asking, words: list[str], options: Options) -> str:
    """`change HANDLE SECONDS`; no seconds is no duration."""
    request = rpc.ChangeInvisibleDurationRequest(
        group=asking.resource(options, "group"),
        topic=asking.resource(options, "topic"),
        receipt_handle=_handle(words[0]),
        message_id="m",
    )
    if len(words) > 1:
        request.invisible_duration.FromMilliseconds(round(float(words[1]) * 1000))
    answers = await asking.call("ChangeInvisibleDuration", request)
    asking.handles["n"] = getattr(answers[0], "receipt_handle", "")
    return code_of(answers)


async def _bury(asking: Asking, words: list[str], options: Options) -> str:
    request = rpc.ForwardMessageToDeadLetterQueueRequest(
        group=asking.resource(options, "group"),
        topic=asking.resource(options, "topic"),
        receipt_handle=_handle(words[0]),
        message_id="m",
        delivery_attempt=1,
        max_delivery_attempts=1,
    )
    return code_of(await asking.call("ForwardMessageToDeadLetterQueue", request))


async def _end(asking: Asking, words: list[str], options: Options) -> str:
    """`end commit|rollback|NUMBER [id=…] [source=…]`."""
    number = {"commit": pb.COMMIT, "rollback": pb.ROLLBACK}.get(words[0])
    request = rpc.EndTransactionRequest(
        topic=asking.resource(options, "topic"),
        message_id=options.get("message-id", "m"),
        transaction_id=options.get("id", asking.handles.get("t", "")),
        resolution=int(words[0]) if number is None else number,  # type: ignore[arg-type] # any
        source=int(options.get("source", pb.SOURCE_CLIENT)),  # type: ignore[arg-type] # any
    )
    return code_of(await asking.call("EndTransaction", request))


async def _recall(asking: Asking, words: list[str], options: Options) -> str:
    request = rpc.RecallMessageRequest(
        topic=asking.resource(options, "topic"), recall_handle=words[0]
    )
    return code_of(await asking.call("RecallMessage", request))


async def _route(asking: Asking, words: list[str], options: Options) -> str:
    request = rpc.QueryRouteRequest(topic=asking.resource(options, "topic"))
    return code_of(await asking.call("QueryRoute", request))


async def _assignment(asking: Asking, words: list[str], options: Options) -> str:
    request = rpc.QueryAssignmentRequest(
        topic=asking.resource(options, "topic"), group=asking.resource(options, "group")
    )
    return code_of(await asking.call("QueryAssignment", request))


async def _settings(asking: Asking, words: list[str], options: Options) -> str:
    kind = int(words[0]) if words[0].isdigit() else pb.ClientType.Value(words[0])
    return await asking.settings(kind, options)


async def _heartbeat(asking: Asking, words: list[str], options: Options) -> str:
    request = rpc.HeartbeatRequest(client_type=int(words[0]) if words[0].isdigit() else words[0])  # type: ignore[arg-type] # any
    if "no-group" not in words:
        request.group.CopyFrom(asking.resource(options, "group"))
    return code_of(await asking.call("Heartbeat", request))


async def _leave(asking: Asking, words: list[str], options: Options) -> str:
    request = rpc.NotifyClientTerminationRequest()
    if "no-group" not in words:
        request.group.CopyFrom(asking.resource(options, "group"))
    return code_of(await asking.call("NotifyClientTermination", request))


async def _empty(asking: Asking, words: list[str], options: Options) -> str:
    """`empty METHOD [client-id=…]`: a request of that method with nothing in it."""
    method = _METHODS[words[0]]
    headers = asking.headers(**{"client-id": text_of(options.get("client-id", asking.client))})
    return code_of(await asking.call(words[0], method.request(), headers=headers))


async def _wait(asking: Asking, words: list[str], _: Options) -> str:
    await asyncio.sleep(float(words[0]))  # the question says so
    return ""


_VERBS: dict[str, Verb] = {
    "send": _send,
    "six": _six,
    "receive": _receive,
    "ack": _ack,
    "cut": _cut,
    "alter": _alter,
    "change": _change,
    "bury": _bury,
    "end": _end,
    "recall": _recall,
    "route": _route,
    "assignment": _assignment,
    "settings": _settings,
    "heartbeat": _heartbeat,
    "leave": _leave,
    "empty": _empty,
    "wait": _wait,
}
