"""Whose message groups are remembered."""

import pytest

from cosmodrome_server.core import message_group
from cosmodrome_server.core.message_group import MessageGroups
from cosmodrome_server.model.log import MessageRecord, MessageState
from cosmodrome_server.model.wire import encode_bytes

MESSAGE_GROUP = 17


def message(name: str) -> MessageRecord:
    system = encode_bytes(MESSAGE_GROUP, name.encode())
    return MessageRecord(MessageState.VISIBLE, 1, 0, 0, 0, 0, 0, system, b"", b"")


def test_what_is_looked_up_is_kept_while_new_messages_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_group, "_NAMES_MAX", 8)
    groups = MessageGroups()
    assert groups.learn((1, 0, 0), message("a")) == "a"
    for queue_offset in range(1, 1_000):
        groups.remember((1, 0, queue_offset), message("b"))
        assert groups.known((1, 0, 0)) == "a"
    assert groups.known((1, 0, 1)) is None


def test_as_much_is_remembered_as_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_group, "_NAMES_MAX", 8)
    groups = MessageGroups()
    read: list[int] = []
    for _ in range(20):
        read.clear()
        for queue_offset in range(100):
            if groups.known((1, 0, queue_offset)) is None:
                groups.learn((1, 0, queue_offset), message(str(queue_offset)))
                read.append(queue_offset)
    assert read == []


def test_a_lost_message_has_no_group_and_is_not_looked_for_again() -> None:
    groups = MessageGroups()
    assert groups.learn((1, 0, 0), None) == ""
    assert groups.known((1, 0, 0)) == ""
