"""The official Python client behind the line protocol of tests/conformance/driver.py.

One JSON object a line in, one out; see that module for the commands. Every command runs in a
thread of its own, so a long poll does not hold up an ack. This client's durations are whole
seconds, and its delivery timestamp is in seconds on the way out and milliseconds on the way in.
"""

import base64
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import rocketmq
from rocketmq import ConsumeResult, FilterExpression, TransactionResolution
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.exception import LiteSubscriptionQuotaExceededException

Command = dict[str, Any]

RESOLUTIONS = {
    "commit": TransactionResolution.COMMIT,
    "rollback": TransactionResolution.ROLLBACK,
    "unknown": TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
}

_out_lock = threading.Lock()
_out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)


def say(line: Command) -> None:
    text = json.dumps(line)
    with _out_lock:
        _out.write(text + "\n")
        _out.flush()


def seconds(milliseconds: int) -> int:
    """The client's unit; a fraction it cannot express is an error, not a rounding."""
    whole, rest = divmod(milliseconds, 1000)
    if rest:
        raise ValueError(f"this client's durations are whole seconds, not {milliseconds} ms")
    return whole


class Clients:
    """The clients and received messages of this process, by the names the tests gave them."""

    def __init__(self) -> None:
        self.clients: dict[str, Any] = {}
        self.received: dict[str, Any] = {}
        self.counter = 0
        self.lock = threading.Lock()

    def shown(self, message: Any) -> Command:
        with self.lock:
            self.counter += 1
            handle = str(self.counter)
            self.received[handle] = message
        return {
            "handle": handle,
            "message_id": message.message_id,
            "topic": message.topic,
            "body": base64.b64encode(message.body or b"").decode(),
            "tag": message.tag,
            "keys": sorted(message.keys),
            "properties": dict(message.properties),
            "message_group": message.message_group,
            "attempt": message.delivery_attempt,
            "delivery_at_ms": message.delivery_timestamp or None,
            "born_at_ms": message.born_timestamp,
            "born_host": message.born_host,
            "priority": message.priority,
            "lite_topic": message.lite_topic,
            "corrupted": message.corrupted,
        }


HERE = Clients()


class Listener(rocketmq.MessageListener):  # type: ignore[misc]  # the client is untyped
    """Fails each message `fail_times` times, after `slow_ms`, and tells of each delivery."""

    def __init__(self, client: str, command: Command) -> None:
        self.client = client
        self.fail_times = command.get("fail_times", 0)
        self.slow_ms = command.get("slow_ms", 0)
        self.seen: dict[str, int] = {}
        self.lock = threading.Lock()

    def consume(self, message: Any) -> ConsumeResult:
        with self.lock:
            times = self.seen[message.message_id] = self.seen.get(message.message_id, 0) + 1
        succeeds = times > self.fail_times
        event = {"event": "delivery", "client": self.client, "message": HERE.shown(message)}
        say({**event, "result": "success" if succeeds else "failure"})
        if self.slow_ms:
            time.sleep(self.slow_ms / 1000)  # the listener's work
        return ConsumeResult.SUCCESS if succeeds else ConsumeResult.FAILURE


class Checker(rocketmq.TransactionChecker):  # type: ignore[misc]  # the client is untyped
    """Answers with the message's own property `verdict`, else with the one it was made with."""

    def __init__(self, client: str, verdict: str) -> None:
        self.client = client
        self.verdict = verdict

    def check(self, message: Any) -> Any:
        verdict = message.properties.get("verdict", self.verdict)
        event = {"event": "check", "client": self.client, "message": HERE.shown(message)}
        say({**event, "result": verdict})
        return RESOLUTIONS[verdict]


def configuration(command: Command) -> rocketmq.ClientConfiguration:
    credentials = rocketmq.Credentials(command.get("access_key"), command.get("secret_key"))
    return rocketmq.ClientConfiguration(
        command["endpoint"], credentials, command.get("namespace") or ""
    )


def subscriptions(command: Command) -> dict[str, FilterExpression]:
    types = {"tag": FilterType.TAG, "sql": FilterType.SQL}
    return {
        topic: FilterExpression(each["expression"], types[each["type"]])
        for topic, each in command["subscriptions"].items()
    }


def make_producer(command: Command) -> Command:
    verdict = command.get("checker")
    checker = Checker(command["client"], verdict) if verdict else None
    tls = {} if command.get("tls") is None else {"tls_enable": command["tls"]}
    producer = rocketmq.Producer(configuration(command), command.get("topics"), checker, **tls)
    return start(command, producer)


def make_simple(command: Command) -> Command:
    tls = {} if command.get("tls") is None else {"tls_enable": command["tls"]}
    return start(
        command,
        rocketmq.SimpleConsumer(
            configuration(command),
            command["group"],
            subscriptions(command),
            await_duration=seconds(command["await_ms"]),
            **tls,
        ),
    )


def make_push(command: Command) -> Command:
    tls = {} if command.get("tls") is None else {"tls_enable": command["tls"]}
    listener = Listener(command["client"], command)
    return start(
        command,
        rocketmq.PushConsumer(
            configuration(command), command["group"], listener, subscriptions(command), **tls
        ),
    )


def make_lite_push(command: Command) -> Command:
    listener = Listener(command["client"], command)
    consumer = rocketmq.LitePushConsumer(
        configuration(command), command["group"], command["bind_topic"], listener
    )
    return start(command, consumer)


def make_lite_simple(command: Command) -> Command:
    consumer = rocketmq.LiteSimpleConsumer(
        command["bind_topic"],
        configuration(command),
        command["group"],
        await_duration=seconds(command["await_ms"]),
    )
    return start(command, consumer)


def start(command: Command, client: Any) -> Command:
    client.startup()
    HERE.clients[command["client"]] = client
    return {}


def built(command: Command) -> rocketmq.Message:
    given = command["message"]
    message = rocketmq.Message()
    message.topic = given["topic"]
    message.body = base64.b64decode(given["body"])
    for name in ("tag", "message_group", "priority", "lite_topic"):
        if given.get(name) is not None:
            setattr(message, name, given[name])
    if given.get("delivery_at_ms") is not None:
        message.delivery_timestamp = given["delivery_at_ms"] // 1000
    for key in given.get("keys", ()):
        message.keys = key
    for name, value in given.get("properties", {}).items():
        message.add_property(name, value)
    return message


def send(command: Command) -> Command:
    producer = HERE.clients[command["client"]]
    message = built(command)
    resolution = command.get("transaction")
    if resolution is None:
        if command.get("asynchronous"):
            receipt = producer.send_async(message).result()
        else:
            receipt = producer.send(message)
    else:
        transaction = producer.begin_transaction()
        receipt = producer.send(message, transaction)
        if resolution == "commit":
            transaction.commit()
        elif resolution == "rollback":
            transaction.rollback()
    return {
        "message_id": receipt.message_id,
        "transaction_id": receipt.transaction_id or None,
        "recall_handle": receipt.recall_handle or None,
    }


def recall(command: Command) -> Command:
    producer = HERE.clients[command["client"]]
    recalled = producer.recall_message(command["topic"], command["recall_handle"])
    return {"message_id": recalled}


def receive(command: Command) -> Command:
    consumer = HERE.clients[command["client"]]
    messages = consumer.receive(command["max_messages"], seconds(command["invisible_ms"]))
    return {"messages": [HERE.shown(message) for message in messages or ()]}


def ack(command: Command) -> Command:
    HERE.clients[command["client"]].ack(HERE.received[command["handle"]])
    return {}


def change_invisible(command: Command) -> Command:
    consumer = HERE.clients[command["client"]]
    duration = seconds(command["invisible_ms"])
    consumer.change_invisible_duration(HERE.received[command["handle"]], duration)
    return {}


def subscribe(command: Command) -> Command:
    ((topic, expression),) = subscriptions(command).items()
    HERE.clients[command["client"]].subscribe(topic, expression)
    return {}


def unsubscribe(command: Command) -> Command:
    HERE.clients[command["client"]].unsubscribe(command["topic"])
    return {}


def subscribe_lite(command: Command) -> Command:
    # The client starts before it knows its quota, and takes it for 0 until then.
    for tries_left in range(50, -1, -1):
        try:
            HERE.clients[command["client"]].subscribe_lite(command["lite_topic"])
        except LiteSubscriptionQuotaExceededException:
            if not tries_left:
                raise
            time.sleep(0.1)
        else:
            break
    return {}


def unsubscribe_lite(command: Command) -> Command:
    HERE.clients[command["client"]].unsubscribe_lite(command["lite_topic"])
    return {}


def close(command: Command) -> Command:
    HERE.clients.pop(command["client"]).shutdown()
    return {}


COMMANDS = {
    "producer": make_producer,
    "simple": make_simple,
    "push": make_push,
    "lite_push": make_lite_push,
    "lite_simple": make_lite_simple,
    "send": send,
    "recall": recall,
    "receive": receive,
    "ack": ack,
    "change_invisible": change_invisible,
    "subscribe": subscribe,
    "unsubscribe": unsubscribe,
    "subscribe_lite": subscribe_lite,
    "unsubscribe_lite": unsubscribe_lite,
    "close": close,
}


def run(command: Command) -> None:
    try:
        answer = COMMANDS[command["op"]](command)
    except BaseException as error:  # whatever the client throws is the answer
        code = getattr(error, "code", None)
        problem = {
            "type": type(error).__name__,
            "message": str(error),
            "code": code if isinstance(code, int) else None,
        }
        say({"id": command["id"], "ok": False, "error": problem})
    else:
        say({"id": command["id"], "ok": True, **answer})


def main() -> None:
    say({"event": "ready", "client_version": version("rocketmq-python-client")})
    with ThreadPoolExecutor(max_workers=200) as pool:
        for line in sys.stdin:
            command = json.loads(line)
            if command["op"] == "exit":
                break
            pool.submit(run, command)
    os._exit(0)  # the client's own threads are not daemons


if __name__ == "__main__":
    main()
