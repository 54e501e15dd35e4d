import subprocess
import sys
import time

import pytest

from cosmodrome_server.core.filter_expression import TAGS_CHARS_MAX, compile_filter
from cosmodrome_server.core.matchers import COMPILED_MAX, Matchers
from cosmodrome_server.errors import IllegalFilterExpression
from cosmodrome_server.model.filter import EVERYTHING, Filter, FilterType
from cosmodrome_server.model.log import MessageRecord, MessageState
from cosmodrome_server.model.wire import dead_letter_queue, encode_bytes, varint


def message(system: bytes = b"", **properties: str) -> MessageRecord:
    entries = (
        encode_bytes(1, key.encode()) + encode_bytes(2, value.encode())
        for key, value in properties.items()
    )
    user = b"".join(encode_bytes(2, entry) for entry in entries)
    return MessageRecord(MessageState.VISIBLE, 1, 0, 0, 0, 0, 0, system, user, b"x")


def tagged(tag: str) -> MessageRecord:
    return message(encode_bytes(1, tag.encode()))


def tags(expression: str) -> Filter:
    return Filter(FilterType.TAG, expression)


def sql(expression: str) -> Filter:
    return Filter(FilterType.SQL, expression)


@pytest.mark.parametrize("expression", ["", "*", "  ", " * "])
def test_no_tag_expression_and_a_star_match_everything(expression: str) -> None:
    matcher = compile_filter(tags(expression))
    assert matcher.is_everything
    assert matcher.tag_hashes is None
    assert matcher.matches(message())


def test_tags_are_alternatives_trimmed_and_exact() -> None:
    matcher = compile_filter(tags(" a||b ||  || c|d"))
    assert not matcher.is_everything
    assert [matcher.matches(tagged(tag)) for tag in ("a", "b", "c|d", "A", "c", "")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


def test_two_tags_with_one_hash_are_told_apart() -> None:
    matcher = compile_filter(tags("Aa"))
    assert matcher.tag_hashes == frozenset({2112})
    assert matcher.matches(tagged("Aa"))
    assert not matcher.matches(tagged("BB"))


@pytest.mark.parametrize("expression", ["||", "|| ||", " ||  || "])
def test_a_tag_expression_of_separators_only_is_refused(expression: str) -> None:
    with pytest.raises(IllegalFilterExpression, match="names no tag"):
        compile_filter(tags(expression))


def test_a_tag_expression_has_a_bound() -> None:
    matcher = compile_filter(tags("x" * TAGS_CHARS_MAX))
    assert matcher.tag_hashes is not None
    with pytest.raises(IllegalFilterExpression, match="65537 characters, 65536 are allowed"):
        compile_filter(tags("x" * (TAGS_CHARS_MAX + 1)))


def test_an_sql_expression_that_was_compiled_is_not_compiled_again() -> None:
    """It is in every settings and every receive, and a long one takes 0.1 s."""
    text = " OR ".join(f"a{number}={number}" for number in range(1_200))
    compile_filter(sql(text))
    began_s = time.process_time()
    for _ in range(100):
        compile_filter(sql(text))
    assert time.process_time() - began_s < 1


def test_sql_reads_user_properties() -> None:
    matcher = compile_filter(sql("price > 10 AND region = 'eu'"))
    assert not matcher.is_everything
    assert matcher.tag_hashes is None
    assert matcher.matches(message(price="11", region="eu"))
    assert not matcher.matches(message(price="9", region="eu"))
    assert not matcher.matches(message(price="11"))


def test_an_empty_property_is_absent() -> None:
    assert compile_filter(sql("a IS NULL")).matches(message(a=""))


def stamp(field: int, seconds: int, nanos: int) -> bytes:
    seconds_field = b"\x08" + varint(seconds & (1 << 64) - 1)
    return encode_bytes(field, seconds_field + (b"\x10" + varint(nanos) if nanos else b""))


SYSTEM = b"".join(
    (
        encode_bytes(1, b"t"),
        encode_bytes(2, b"k1"),
        encode_bytes(2, b"k2"),
        encode_bytes(3, b"id"),
        stamp(7, 1_700_000_000, 5_000_000),
        encode_bytes(8, b"10.0.0.1:5"),
        stamp(11, -1, 999_000_000),
        encode_bytes(17, b"group"),
        encode_bytes(18, b"trace"),
        dead_letter_queue("orders", "origin"),
        encode_bytes(21, b"lite"),
        b"\xb0\x01\x07",
    )
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TAGS", "t"),
        ("KEYS", "k1 k2"),
        ("UNIQ_KEY", "id"),
        ("BORN_TIMESTAMP", "1700000000005"),
        ("__BORNHOST", "10.0.0.1:5"),
        ("TIMER_DELIVER_MS", "-1"),
        ("__SHARDINGKEY", "group"),
        ("TRACE_CONTEXT", "trace"),
        ("DLQ_ORIGIN_TOPIC", "orders"),
        ("DLQ_ORIGIN_MESSAGE_ID", "origin"),
        ("__LITE_TOPIC", "lite"),
        ("_SYS_MSG_PRIORITY_", "7"),
    ],
)
def test_sql_sees_the_system_properties_by_their_stored_names(name: str, value: str) -> None:
    matcher = compile_filter(sql(f"{name} = '{value}'"))
    assert matcher.matches(message(SYSTEM))
    assert not matcher.matches(message())


def test_a_user_property_does_not_shadow_a_system_one() -> None:
    assert not compile_filter(sql("TAGS = 'mine'")).matches(message(TAGS="mine"))


def test_a_filter_is_compiled_once_and_the_number_kept_is_bounded() -> None:
    matchers = Matchers()
    assert matchers.of(EVERYTHING).is_everything
    assert matchers.of(sql("a = 1")) is matchers.of(sql("a = 1"))
    for number in range(COMPILED_MAX + 10):
        matchers.of(tags(f"t{number}"))
    assert len(matchers) <= COMPILED_MAX


def test_a_broker_that_sees_no_sql_does_not_import_the_parser() -> None:
    code = "import cosmodrome_server.core.matchers, sys; sys.exit('lark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
