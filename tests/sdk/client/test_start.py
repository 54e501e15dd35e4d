"""A client that cannot start says why, and does not wait for what will not change."""

import asyncio
import gc
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from cosmodrome import ClientConfiguration, Message, Producer, SimpleConsumer, errors
from cosmodrome._client import client
from cosmodrome._client.rpc import translated
from cosmodrome._client.tasks import first_success
from cosmodrome._core import endpoints
from cosmodrome.testing import TestBroker
from tests.support.fronts import FRONTS

Names = Callable[[str], str]
CLOSED_PORT = "127.0.0.1:1"


@pytest.mark.parametrize("topics", [[], ["orders"]])
async def test_nobody_at_the_address_is_said_so_once_waiting_is_over(
    topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "SETTLE_S", 0.1)
    # Time enough to hear that nobody is there.
    where = ClientConfiguration(
        CLOSED_PORT, request_timeout=timedelta(seconds=1), max_startup_attempts=1
    )
    with pytest.raises(errors.ConnectionFailed, match="Connection refused"):
        await Producer(where, topics=topics).start()


async def test_settings_that_the_broker_refuses_end_a_start_at_once(
    broker: TestBroker, name: Names
) -> None:
    patient = ClientConfiguration(broker.endpoint, request_timeout=timedelta(hours=1))
    consumer = SimpleConsumer(patient, group="no group", subscriptions={name("t"): "*"})
    with pytest.raises(errors.BadRequest, match="other characters"):
        await consumer.start()


@pytest.mark.parametrize("front", FRONTS)
async def test_a_broker_with_several_addresses_is_reached_at_whichever_answers(
    front: str, name: Names
) -> None:
    with TestBroker(settings={"server.front": front}) as broker:
        async with Producer(f"{broker.endpoint};{CLOSED_PORT}", topics=[name("t")]) as producer:
            await producer.send(Message(name("t"), b"first"))
        async with Producer(f"{CLOSED_PORT};{broker.endpoint}", topics=[name("t")]) as producer:
            await producer.send(Message(name("t"), b"second"))


@pytest.mark.parametrize(("name", "words"), [("ca.pem", "is not PEM"), ("none", "cannot read")])
async def test_a_file_for_tls_that_cannot_be_used_is_named_at_once(
    name: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    where = f"rocketmq://{CLOSED_PORT}?tls=true&ca={tmp_path / name}"
    with pytest.raises(errors.ConfigurationError, match=f"{name}.*{words}|{words}.*{name}"):
        await Producer(where).start()


@pytest.mark.parametrize(
    ("details", "hint"),
    [
        ("GOAWAY received; Debug Text: this port requires TLS, 1.2+", "tls=true, with ca="),
        ("Hostname Verification Check failed.", "server_name="),
        ("SSL routines: CERTIFICATE_VERIFY_FAILED", "tls=insecure"),
    ],
)
def test_why_there_is_no_connection_comes_with_what_to_do(details: str, hint: str) -> None:
    class Refused(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNAVAILABLE

        def details(self) -> str:
            return details

    error = translated(Refused(), "QueryRoute", endpoints.parse(CLOSED_PORT), "id")
    assert isinstance(error, errors.ConnectionFailed)
    assert details in str(error)
    assert hint in str(error)


async def test_wrong_credentials_end_a_start_at_once() -> None:
    settings = {
        "security.authentication": "true",
        "security.admin_user": "root",
        "security.admin_secret": "s3cret123",
    }
    with TestBroker(settings=settings) as guarded:
        patient = ClientConfiguration.of(f"rocketmq://root:wrong@{guarded.endpoint}")
        with pytest.raises(errors.Unauthorized, match="signature"):
            await Producer(patient).start()


async def _ends(after: "asyncio.Event | None", error: Exception | None = None) -> None:
    if after is not None:
        await after.wait()
    if error is not None:
        raise error


@pytest.mark.parametrize(
    "works",
    [
        lambda never: [_ends(None), _ends(never)],
        lambda never: [_ends(None, ValueError()), _ends(None), _ends(never)],
        lambda never: [_ends(None, ValueError()), _ends(None, ValueError())],
        lambda _: [],
    ],
)
async def test_waiting_ends_with_the_first_success_or_the_last_failure(works: Any) -> None:
    before = asyncio.all_tasks()
    await first_success(works(asyncio.Event()), 3600)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_failures_beside_a_success_are_nobodys_news(caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()  # what other tests left
    caplog.clear()
    failing = [_ends(None, ValueError()) for _ in range(20)]
    await first_success([*failing[:10], _ends(None), *failing[10:]], 3600)
    gc.collect()
    assert not caplog.records


async def test_waiting_ends_with_the_time() -> None:
    await first_success([_ends(asyncio.Event())], 0.01)
