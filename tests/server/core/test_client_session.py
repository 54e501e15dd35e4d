"""Sessions: known while heard of."""

import pytest

from cosmodrome_server.core.client_session import ClientSession, ClientSessions, ClientType
from cosmodrome_server.errors import OverloadedError


def producer(client_id: str, *topics: str) -> ClientSession:
    return ClientSession(client_id, ClientType.PRODUCER, topics=topics)


def consumer(client_id: str, group: str) -> ClientSession:
    return ClientSession(client_id, ClientType.PUSH_CONSUMER, group=group, topics=("orders",))


def test_a_client_not_heard_of_for_the_expiry_is_gone() -> None:
    sessions = ClientSessions(120_000)
    sessions.register(consumer("a", "billing"), 0)
    sessions.register(consumer("b", "billing"), 0)
    sessions.touch("a", 60_000)

    assert [gone.client_id for gone in sessions.expire(119_999)] == []
    assert [gone.client_id for gone in sessions.expire(120_000)] == ["b"]
    assert [gone.client_id for gone in sessions.expire(180_000)] == ["a"]
    assert len(sessions) == 0


def test_a_heartbeat_of_an_unknown_client_is_told_apart() -> None:
    assert ClientSessions(1).touch("nobody", 0) is None


def test_new_settings_replace_the_old_ones_wholly() -> None:
    sessions = ClientSessions(1)
    sessions.register(producer("a", "orders", "bills"), 0)
    sessions.register(producer("a", "bills"), 0)

    assert sessions.producers_of("orders") == []
    assert sessions.producers_of("bills") == ["a"]


def test_a_producer_that_becomes_a_consumer_is_asked_about_no_transaction() -> None:
    sessions = ClientSessions(1)
    sessions.register(producer("a", "orders"), 0)
    sessions.register(consumer("a", "billing"), 0)

    assert sessions.producers_of("orders") == []
    assert [one.client_id for one in sessions.members_of("billing")] == ["a"]


def test_users_of_a_topic_are_those_who_publish_and_those_who_subscribe() -> None:
    sessions = ClientSessions(1)
    sessions.register(producer("a", "orders"), 0)
    sessions.register(consumer("b", "billing"), 0)
    sessions.register(producer("c", "bills"), 0)

    assert [one.client_id for one in sessions.users_of("orders")] == ["a", "b"]


def test_no_more_clients_are_known_than_may_be() -> None:
    sessions = ClientSessions(1, sessions_max=1)
    sessions.register(producer("a"), 0)
    sessions.register(producer("a"), 1)

    with pytest.raises(OverloadedError):
        sessions.register(producer("b"), 1)
    assert sessions.end("a") is not None
    assert sessions.end("a") is None
    sessions.register(producer("b"), 1)
