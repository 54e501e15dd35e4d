"""Which names are allowed; protocol.md 4 and 5.5."""

import pytest

from cosmodrome_server.config import Limits
from cosmodrome_server.errors import IllegalConsumerGroup, IllegalLiteTopic, IllegalTopic
from cosmodrome_server.proxy.names import Names

NAMES = Names(Limits())


@pytest.mark.parametrize(
    "name", ["a", "A-b_9", "a%b", "a|b", "t" * 127, "%DLQ%billing", "RMQ_SYS_X"]
)
def test_a_topic_may_be_called_so(name: str) -> None:
    assert NAMES.topic(name) == name


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a.b", "ünïcode", "t" * 128, "a\n", "TBW102", "rmq_sys_x", "SELF_TEST_TOPIC"],
)
def test_a_topic_may_not_be_called_so(name: str) -> None:
    for _ in range(2):  # a refusal is not remembered as a success
        with pytest.raises(IllegalTopic):
            NAMES.topic(name)


@pytest.mark.parametrize("name", ["", " ", "a b", "a.b", "g" * 121, "CID_RMQ_SYS_REVIVE_GROUP"])
def test_a_group_may_not_be_called_so(name: str) -> None:
    with pytest.raises(IllegalConsumerGroup):
        NAMES.group(name)


def test_a_group_has_at_most_120_characters() -> None:
    assert NAMES.group("g" * 120) == "g" * 120


@pytest.mark.parametrize("name", ["", "a b", "a%b", "l" * 65])
def test_a_lite_topic_may_not_be_called_so(name: str) -> None:
    with pytest.raises(IllegalLiteTopic):
        NAMES.lite_topic(name)
