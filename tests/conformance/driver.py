"""An official client in a process of its own, driven line by line.

Every driver under clients/ speaks this protocol: JSON objects, one a line, commands on its
standard input, answers and events on its standard output. Standard error and the client's own log
files are kept and shown when something fails.

    → {"id": 1, "op": "producer", "client": "p1", "endpoint": "127.0.0.1:8081", "topics": ["t"]}
    ← {"id": 1, "ok": true}
    → {"id": 2, "op": "send", "client": "p1", "message": {"topic": "t", "body": "aGk="}}
    ← {"id": 2, "ok": true, "message_id": "01…", "recall_handle": null}
    ← {"event": "delivery", "client": "c1", "message": {…}, "result": "success"}
    ← {"id": 3, "ok": false, "error": {"type": "NotFoundException", "message": "…", "code": 40402}}

Commands run concurrently and are answered as they finish. All times are milliseconds, bodies are
base64, absent means the client's default, a filter is of type tag or sql. The first line is
{"event": "ready", "client_version": …}.

| op | fields |
|---|---|
| producer | client, endpoint, tls, access_key, secret_key, topics, max_attempts, checker |
| simple | client, endpoint…, group, subscriptions {topic: {expression, type}}, await_ms |
| push | client, endpoint…, group, subscriptions, fail_times, slow_ms |
| lite_push, lite_simple | client, endpoint…, group, bind_topic, then as push or simple |
| send | client, message, transaction (commit, rollback, leave), asynchronous |
| recall | client, topic, recall_handle |
| receive | client, max_messages, invisible_ms |
| ack, change_invisible | client, handle of a received message, invisible_ms |
| subscribe, unsubscribe | client, subscriptions or topic |
| subscribe_lite, unsubscribe_lite | client, lite_topic, from_start |
| close, exit | client |

A push listener fails each message `fail_times` times and then succeeds, `slow_ms` after it told of
the delivery. A transaction checker answers commit, rollback or unknown: the message's property
`verdict`, else `checker`.
"""

import asyncio
import base64
import itertools
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from cosmodrome_proto import definition_pb2
from tests.conformance.languages import Language
from tests.conformance.setup import Program

ANSWER_SECONDS = 45.0
LINE_BYTES_MAX = 64 << 20
STDERR_TAIL_BYTES = 4_000

Answer = TypeVar("Answer")


class DriverDied(Exception):
    """The client's process ended, or did not answer in time: the text has its last words."""


class Refused(Exception):
    """The client said no, by itself or because the server did; `code` is the server's, if any."""

    def __init__(self, op: str, kind: str, words: str, code: int | None) -> None:
        super().__init__(f"{op}: {kind}: {words}" + (f" [{code}]" if code else ""))
        self.op = op
        self.kind = kind
        self.words = words
        self.code = code


@dataclass(frozen=True)
class Outgoing:
    """A message to send; times in milliseconds since the epoch."""

    topic: str
    body: bytes
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    message_group: str | None = None
    delivery_at_ms: int | None = None
    priority: int | None = None
    lite_topic: str | None = None

    def line(self) -> dict[str, Any]:
        told = {"topic": self.topic, "body": base64.b64encode(self.body).decode()}
        optional = {
            "tag": self.tag,
            "keys": list(self.keys),
            "properties": self.properties,
            "message_group": self.message_group,
            "delivery_at_ms": self.delivery_at_ms,
            "priority": self.priority,
            "lite_topic": self.lite_topic,
        }
        return told | {
            name: value for name, value in optional.items() if value not in (None, [], {})
        }


@dataclass(frozen=True)
class Incoming:
    """A message as a client shows it; `at` is the loop's time when the test heard of it."""

    handle: str
    message_id: str
    topic: str
    body: bytes
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    message_group: str | None
    attempt: int
    delivery_at_ms: int | None
    born_at_ms: int | None
    priority: int | None
    lite_topic: str | None
    at: float
    result: str = ""

    @classmethod
    def of(cls, line: dict[str, Any], at: float, result: str = "") -> "Incoming":
        return cls(
            handle=line["handle"],
            message_id=line["message_id"],
            topic=line["topic"],
            body=base64.b64decode(line["body"] or ""),
            tag=line.get("tag") or None,
            keys=tuple(sorted(line.get("keys") or ())),
            properties=line.get("properties") or {},
            message_group=line.get("message_group") or None,
            attempt=line.get("attempt") or 0,
            delivery_at_ms=line.get("delivery_at_ms"),
            born_at_ms=line.get("born_at_ms"),
            priority=line.get("priority"),
            lite_topic=line.get("lite_topic") or None,
            at=at,
            result=result,
        )


@dataclass(frozen=True)
class Receipt:
    message_id: str
    transaction_id: str | None
    recall_handle: str | None


@dataclass(frozen=True)
class Filter:
    expression: str = "*"
    type: str = "tag"


Subscriptions = dict[str, Filter]


class Driver:
    """One process of one official client. `async with` starts it and ends it."""

    def __init__(self, language: Language, program: Program, **environment: str) -> None:
        self.language = language
        self.client_version = ""
        self._program = program
        self._environment = environment
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listening: dict[str, asyncio.Queue[Incoming]] = {}
        self._home = tempfile.TemporaryDirectory(prefix=f"conformance-{language.name}-")
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        home = self._home.name
        command = list(self._program.command)
        if command[0] == "java":  # which takes its home from the password file, not from HOME
            command[1:1] = [f"-Duser.home={home}"]
        # Clients write logs below HOME: theirs is a folder that goes away with them.
        environment = {**os.environ, "HOME": home, **self._program.environment, **self._environment}
        with (Path(home) / "stderr").open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd=home,
                limit=LINE_BYTES_MAX,
            )
        self._reader = asyncio.create_task(self._read())
        try:
            self.client_version = await self._within(self._ready, "start")
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        process = self._process
        assert process is not None
        if process.returncode is None:
            process.kill()  # clients are closed one by one; the process itself holds nothing
        await process.wait()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)
        self._home.cleanup()

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send one command and return its answer.

        Raises:
            Refused: The client, or the server through it, said no.
            DriverDied: No answer in time.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        if process.returncode is not None:
            raise DriverDied(f"{self.language.title} ended: {self.last_words()}")
        told: dict[str, Any]
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        line = {"id": number, "op": op, **{k: v for k, v in fields.items() if v is not None}}
        process.stdin.write(json.dumps(line).encode() + b"\n")
        try:
            await process.stdin.drain()
            told = await self._within(answer, op)
        finally:
            self._answers.pop(number, None)
        if not told["ok"]:
            problem = told["error"]
            code = problem.get("code")
            if isinstance(code, str):
                code = dict(definition_pb2.Code.items()).get(code)
            raise Refused(op, problem["type"], problem["message"], code)
        return told

    def listen(self, client: str) -> asyncio.Queue[Incoming]:
        """The queue of deliveries, or of checks, that `client` tells of."""
        return self._listening.setdefault(client, asyncio.Queue())

    def last_words(self) -> str:
        """The end of what the client wrote to standard error and to its log files."""
        home = Path(self._home.name)
        parts = []
        for path in (home / "stderr", *sorted(home.glob("logs/**/*.log"))):
            if path.exists() and path.stat().st_size:
                text = path.read_bytes()[-STDERR_TAIL_BYTES:].decode(errors="replace")
                parts.append(f"--- {path.name}\n{text}")
        return "\n".join(parts) or "(it said nothing)"

    async def _within(self, future: asyncio.Future[Answer], what: str) -> Answer:
        try:
            return await asyncio.wait_for(future, ANSWER_SECONDS)
        except TimeoutError:
            words = f"{self.language.title}: no answer to {what} in {ANSWER_SECONDS:.0f} s"
            raise DriverDied(f"{words}\n{self.last_words()}") from None

    async def _read(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        while line := await process.stdout.readline():
            # Clients may print what they like; our lines are objects.
            if line.startswith(b"{"):
                self._take(json.loads(line))
        dead = DriverDied(f"{self.language.title} ended")
        waiting: list[asyncio.Future[Any]] = [self._ready, *self._answers.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(DriverDied(f"{dead}: {self.last_words()}"))

    def _take(self, line: dict[str, Any]) -> None:
        event = line.get("event")
        if event is None:
            answer = self._answers.get(line["id"])
            if answer is not None and not answer.done():
                answer.set_result(line)
        elif event == "ready":
            self._ready.set_result(line["client_version"])
        else:
            at = asyncio.get_running_loop().time()
            message = Incoming.of(line["message"], at, line["result"])
            self.listen(line["client"]).put_nowait(message)
