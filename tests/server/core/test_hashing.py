"""The hashes against the values of the reference."""

import pytest

from cosmodrome_server.core.hashing import java_hash, jump_hash, queue_of_message_group


@pytest.mark.parametrize(
    ("text", "signed"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("order-1", -1207111310),
        ("支付", 823177),
        ("Aa", 2112),
        ("BB", 2112),
    ],
)
def test_strings_hash_as_in_java(text: str, signed: int) -> None:
    assert java_hash(text) == signed % (1 << 32)


@pytest.mark.parametrize(
    ("name", "queues"),
    [("order-1", [0, 0, 3, 3, 3]), ("order-2", [0, 0, 2, 2, 11]), ("user-42", [0, 1, 1, 1, 1])],
)
def test_message_groups_go_to_the_queues_of_the_reference(name: str, queues: list[int]) -> None:
    assert [queue_of_message_group(name, count) for count in (1, 2, 4, 8, 16)] == queues


def test_the_jump_hash_gives_the_published_values() -> None:
    assert jump_hash(10863919174838991, 11) == 6
    assert jump_hash(2016238256797177309, 11) == 3
    assert jump_hash(2, 100_001) == 80_343


def test_adding_a_queue_moves_groups_only_to_it() -> None:
    for number in range(500):
        before = queue_of_message_group(f"group-{number}", 7)
        assert queue_of_message_group(f"group-{number}", 8) in {before, 7}
