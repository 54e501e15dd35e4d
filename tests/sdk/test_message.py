"""Messages leave the process that received them, and stand in logs in short."""

import copy
import pickle
from types import MappingProxyType

import pytest

from cosmodrome import AdminClient, IllegalArgument, Message, MessageView, Producer, sync
from cosmodrome.message import Receipt

RECEIVED = MessageView(
    "id", "t", b"x", properties=MappingProxyType({"a": "b"}), receipt=Receipt("handle", "h:1")
)


@pytest.mark.parametrize("message", [Message("t", b"x", keys="k", properties={"a": "b"}), RECEIVED])
def test_a_message_goes_to_another_process_whole(message: Message | MessageView) -> None:
    assert pickle.loads(pickle.dumps(message)) == message
    assert copy.deepcopy(message) == message


@pytest.mark.parametrize("kind", [Message, lambda topic, body: MessageView("id", topic, body)])
def test_of_a_large_body_the_beginning_is_shown(kind: type[Message]) -> None:
    assert "topic='t', body=b'small'," in repr(kind("t", b"small"))
    shown = repr(kind("t", b"x" * 5_000_000))
    assert len(shown) < 1000
    assert "xxx'… (5000000 bytes), tag=''" in shown


@pytest.mark.parametrize("keys", [["a", None], [7]])
def test_a_key_that_is_no_text_is_refused(keys: list[str]) -> None:
    with pytest.raises(IllegalArgument, match="a message key is text"):
        Message("t", b"x", keys=keys)


async def test_a_client_says_what_it_is_and_how_it_is() -> None:
    producer = Producer("127.0.0.1:1")
    assert repr(producer) == f"<Producer {producer.client_id} at 127.0.0.1:1, created>"
    await producer.close()
    assert repr(producer).endswith(", closed>")
    assert repr(sync.Producer("127.0.0.1:1")).startswith("<blocking <Producer ")
    assert repr(AdminClient("127.0.0.1:1")) == "<AdminClient at 127.0.0.1:1>"
