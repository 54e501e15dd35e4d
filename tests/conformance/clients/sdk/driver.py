"""Cosmodrome's own SDK behind the line protocol of tests/conformance/driver.py.

It is held to the same catalogue as the official clients, on our server and on any other.
"""

import asyncio
import base64
import json
import os
import sys
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cosmodrome
from cosmodrome import ConsumeResult, Filter, Message, MessageView, TransactionResolution

Command = dict[str, Any]
RESOLUTIONS = {
    "commit": TransactionResolution.COMMIT,
    "rollback": TransactionResolution.ROLLBACK,
    "unknown": TransactionResolution.UNKNOWN,
}


def say(line: Command) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


class Clients:
    """The clients and received messages of this process, by the names the tests gave them."""

    def __init__(self) -> None:
        self.clients: dict[str, Any] = {}
        self.received: dict[str, MessageView] = {}

    def shown(self, view: MessageView) -> Command:
        handle = str(len(self.received))
        self.received[handle] = view
        return {
            "handle": handle,
            "message_id": view.message_id,
            "topic": view.topic,
            "body": base64.b64encode(view.body).decode(),
            "tag": view.tag,
            "keys": sorted(view.keys),
            "properties": dict(view.properties),
            "message_group": view.message_group,
            "attempt": view.delivery_attempt,
            "delivery_at_ms": milliseconds(view.deliver_at),
            "born_at_ms": milliseconds(view.born_timestamp),
            "born_host": view.born_host,
            "priority": view.priority,
            "lite_topic": view.lite_topic,
            "corrupted": view.is_corrupted,
        }


HERE = Clients()


def configuration(command: Command) -> cosmodrome.ClientConfiguration:
    credentials = None
    if command.get("access_key"):
        credentials = cosmodrome.Credentials(command["access_key"], command["secret_key"])
    roots = os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH")
    tls = cosmodrome.Tls(ca=Path(roots) if roots else None) if command.get("tls") else None
    return cosmodrome.ClientConfiguration(command["endpoint"], credentials=credentials, tls=tls)


def subscriptions(command: Command) -> dict[str, Filter]:
    return {
        topic: Filter.sql(each["expression"])
        if each["type"] == "sql"
        else Filter(each["expression"])
        for topic, each in command["subscriptions"].items()
    }


def listener(command: Command) -> Any:
    """Fails each message `fail_times` times, after `slow_ms`, and tells of each delivery."""
    seen: Counter[str] = Counter()

    async def consume(view: MessageView) -> ConsumeResult:
        seen[view.message_id] += 1
        succeeds = seen[view.message_id] > command.get("fail_times", 0)
        event = {"event": "delivery", "client": command["client"], "message": HERE.shown(view)}
        say({**event, "result": "success" if succeeds else "failure"})
        await asyncio.sleep(command.get("slow_ms", 0) / 1000)  # the work
        return ConsumeResult.SUCCESS if succeeds else ConsumeResult.FAILURE

    return consume


def checker(command: Command) -> Any:
    """Answers with the message's own property `verdict`, else with the one it was made with."""

    async def check(view: MessageView) -> TransactionResolution:
        verdict = view.properties.get("verdict", command["checker"])
        event = {"event": "check", "client": command["client"], "message": HERE.shown(view)}
        say({**event, "result": verdict})
        return RESOLUTIONS[verdict]

    return check


async def make(command: Command) -> Command:
    where = configuration(command)
    shared = {"group": command.get("group", "")}
    client: Any
    match command["op"]:
        case "producer":
            client = cosmodrome.Producer(
                where,
                topics=command.get("topics", ()),
                max_attempts=command.get("max_attempts", 3),
                transaction_checker=checker(command) if command.get("checker") else None,
            )
        case "simple":
            chosen = subscriptions(command)
            wait = timedelta(milliseconds=command["await_ms"])
            client = cosmodrome.SimpleConsumer(
                where, subscriptions=chosen, await_duration=wait, **shared
            )
        case "push":
            chosen = subscriptions(command)
            client = cosmodrome.PushConsumer(
                where, subscriptions=chosen, listener=listener(command), **shared
            )
        case "lite_push":
            client = cosmodrome.LitePushConsumer(
                where, bind_topic=command["bind_topic"], listener=listener(command), **shared
            )
        case _:
            wait = timedelta(milliseconds=command["await_ms"])
            client = cosmodrome.LiteSimpleConsumer(
                where, bind_topic=command["bind_topic"], await_duration=wait, **shared
            )
    await client.start()
    HERE.clients[command["client"]] = client
    return {}


def built(command: Command) -> Message:
    given = command["message"]
    at = given.get("delivery_at_ms")
    if given.get("tag") == "":
        raise cosmodrome.IllegalArgument("an empty tag is no tag in this client")
    return Message(
        given["topic"],
        base64.b64decode(given["body"]),
        tag=given.get("tag", ""),
        keys=tuple(given.get("keys", ())),
        properties=given.get("properties", {}),
        message_group=given.get("message_group", ""),
        deliver_at=None if at is None else datetime.fromtimestamp(at / 1000, UTC),
        priority=given.get("priority"),
        lite_topic=given.get("lite_topic", ""),
    )


async def send(command: Command) -> Command:
    producer = HERE.clients[command["client"]]
    message = built(command)
    resolution = command.get("transaction")
    if resolution is None:
        if command.get("asynchronous"):
            receipt = await producer.send_nowait(message)
        else:
            receipt = await producer.send(message)
    else:
        transaction = producer.begin_transaction()
        receipt = await producer.send(message, transaction=transaction)
        if resolution == "commit":
            await transaction.commit()
        elif resolution == "rollback":
            await transaction.rollback()
    return {
        "message_id": receipt.message_id,
        "transaction_id": receipt.transaction_id or None,
        "recall_handle": receipt.recall_handle or None,
    }


async def consume(command: Command) -> Command:
    consumer = HERE.clients[command["client"]]
    invisible = timedelta(milliseconds=command.get("invisible_ms", 0))
    match command["op"]:
        case "receive":
            views = await consumer.receive(command["max_messages"], invisible)
            return {"messages": [HERE.shown(view) for view in views]}
        case "ack":
            await consumer.ack(HERE.received[command["handle"]])
        case "change_invisible":
            view = HERE.received[command["handle"]]
            await consumer.change_invisible_duration(view, invisible)
        case "subscribe":
            for topic, chosen in subscriptions(command).items():
                await consumer.subscribe(topic, chosen)
        case "unsubscribe":
            await consumer.unsubscribe(command["topic"])
        case "subscribe_lite":
            options = (
                {"offset": cosmodrome.OffsetOption.first()} if command.get("from_start") else {}
            )
            await consumer.subscribe_lite(command["lite_topic"], **options)
        case "unsubscribe_lite":
            await consumer.unsubscribe_lite(command["lite_topic"])
        case unknown:
            raise ValueError(f"no {unknown} in this client")
    return {}


async def run(command: Command) -> Command:
    match command["op"]:
        case "producer" | "simple" | "push" | "lite_push" | "lite_simple":
            return await make(command)
        case "send":
            return await send(command)
        case "recall":
            producer = HERE.clients[command["client"]]
            return {"message_id": await producer.recall(command["topic"], command["recall_handle"])}
        case "close":
            await HERE.clients.pop(command["client"]).close()
            return {}
        case _:
            return await consume(command)


async def answer(command: Command) -> None:
    try:
        told = await run(command)
    except Exception as error:  # whatever the client raises is the answer
        code = getattr(error, "code", None) or None  # 0: no broker was asked
        problem = {"type": type(error).__name__, "message": str(error), "code": code}
        say({"id": command["id"], "ok": False, "error": problem})
    else:
        say({"id": command["id"], "ok": True, **told})


async def main() -> None:
    say({"event": "ready", "client_version": version("cosmodrome")})
    loop = asyncio.get_running_loop()
    commands: asyncio.Queue[Command] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(commands.put_nowait, json.loads(line))
        loop.call_soon_threadsafe(commands.put_nowait, {"op": "exit"})

    threading.Thread(target=read, daemon=True).start()
    async with asyncio.TaskGroup() as tasks:
        while (command := await commands.get())["op"] != "exit":
            tasks.create_task(answer(command))
        os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
