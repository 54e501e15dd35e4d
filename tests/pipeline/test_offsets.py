import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_spark.errors import InvalidOption
from cosmodrome_spark.offsets import (
    MessageQueue,
    from_json,
    from_text,
    to_json,
    to_text,
)

NAMES = st.text("abcXYZ0123456789-_%|", min_size=1, max_size=8)
QUEUES = st.builds(MessageQueue, NAMES, NAMES, st.integers(0, 20))
OFFSETS = st.dictionaries(QUEUES, st.integers(0, 1 << 62), max_size=12)


@given(OFFSETS)
def test_offsets_survive_the_checkpoint(offsets: dict[MessageQueue, int]) -> None:
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


@given(OFFSETS, st.randoms())
def test_the_same_offsets_are_the_same_text_in_whatever_order_they_came(
    offsets: dict[MessageQueue, int], random: object
) -> None:
    items = list(offsets.items())
    random.shuffle(items)  # type: ignore[attr-defined]  # st.randoms gives a random.Random

    assert to_text(dict(items)) == to_text(offsets)


def test_offsets_read_as_a_user_writes_them() -> None:
    assert from_text('{"orders": {"broker-a:3": 23}}') == {
        MessageQueue("orders", "broker-a", 3): 23
    }


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "nonsense",
        '{"t": 3}',
        '{"t": {"b:0": "x"}}',
        '{"t": {"b:0": true}}',
        '{"t": {"0": 1}}',
    ],
)
def test_offsets_of_another_shape_are_refused(text: str) -> None:
    with pytest.raises(InvalidOption):
        from_text(text)


def test_a_checkpoint_of_a_newer_version_is_refused() -> None:
    with pytest.raises(InvalidOption, match="newer cosmodrome"):
        from_json({"@v": 2})
