"""Credentials that are asked for before every call, and may not be there."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

import pytest

from cosmodrome import (
    ClientConfiguration,
    Credentials,
    Message,
    Producer,
    SimpleConsumer,
)
from cosmodrome._client import client, session
from cosmodrome._client.client import new_client_id
from cosmodrome.errors import ConfigurationError
from cosmodrome.testing import TestBroker

Names = Callable[[str], str]


class Provider:
    """Gives credentials, or once what it is told."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._once: list[Callable[[], Any]] = []

    def once(self, given: Callable[[], Any]) -> None:
        self._once.append(given)

    def __call__(self) -> Credentials | None:
        if self._once:
            given: Credentials | None = self._once.pop()()
            return given
        self.asked.set()
        return Credentials("key", "secret")


def away() -> Credentials:
    raise OSError("no credentials today")


async def test_a_provider_that_fails_is_said_to_whoever_calls_and_asked_again(
    broker: TestBroker, name: Names
) -> None:
    provider = Provider()
    where = ClientConfiguration(broker.endpoint, credentials=provider)
    message = Message(name("t"), b"x")
    async with (
        Producer(where, topics=[name("t")]) as producer,
        SimpleConsumer(where, group=name("g"), subscriptions={name("t"): "*"}) as consumer,
    ):
        provider.once(away)
        with pytest.raises(ConfigurationError, match="no credentials today") as failed:
            await producer.send(message)
        assert not failed.value.maybe_stored
        provider.once(lambda: ("key", "secret"))
        with pytest.raises(ConfigurationError, match="Credentials or None, not tuple"):
            await producer.send(message)
        await producer.send(message)
        (received,) = await consumer.receive()
        provider.once(away)
        with pytest.raises(ConfigurationError, match="no credentials today"):
            await consumer.ack(received)
        await consumer.ack(received)


async def test_heartbeats_outlive_a_provider_that_fails(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "HEARTBEAT_FIRST_S", 0.0)
    monkeypatch.setattr(client, "HEARTBEAT_S", 0.01)
    provider = Provider()
    with broker.recording() as calls:
        async with Producer(ClientConfiguration(broker.endpoint, credentials=provider)):
            provider.once(away)
            before = calls.count("Heartbeat")
            async with asyncio.timeout(20):
                while calls.count("Heartbeat") < before + 2:
                    provider.asked.clear()
                    await provider.asked.wait()


async def test_settings_that_are_refused_again_and_again_are_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session, "REOPEN_S", 0.01)
    secrets = ["right-one"]
    settings = {
        "security.authentication": "true",
        "security.admin_user": "root",
        "security.admin_secret": "right-one",
    }
    with TestBroker(settings=settings) as broker:
        where = ClientConfiguration(
            broker.endpoint, credentials=lambda: Credentials("root", secrets[-1])
        )
        async with Producer(where):
            secrets.append("wrong-one")
            await asyncio.to_thread(broker.restart)
            async with asyncio.timeout(20):
                with broker.recording() as calls:
                    while calls.count("Telemetry") < 5:  # noqa: ASYNC110 - no event says so
                        await asyncio.sleep(0.01)
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len([words for words in told if "refuses our settings" in words]) == 1


@pytest.mark.parametrize("text", ["ключ", "key\n"])
def test_what_no_header_can_carry_is_refused_at_once(text: str) -> None:
    with pytest.raises(ConfigurationError, match="access key"):
        Credentials(text, "secret")
    with pytest.raises(ConfigurationError, match="session token") as refused:
        Credentials("key", "secret", text)
    assert text not in str(refused.value)
    with pytest.raises(ConfigurationError, match="namespace"):
        ClientConfiguration("127.0.0.1:8081", namespace=text)


def test_a_machine_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Jürgens-PC")
    assert new_client_id().startswith("J?rgens-PC@")
