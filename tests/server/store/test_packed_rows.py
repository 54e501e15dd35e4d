from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_server.store import packed_rows
from cosmodrome_server.store.packed_rows import PackedRows

CHANGES = st.lists(st.tuples(st.binary(max_size=3), st.none() | st.binary(max_size=5)))


@given(CHANGES)
def test_rows_come_back_as_they_were_put(changes: list[tuple[bytes, bytes | None]]) -> None:
    rows = PackedRows()
    rows.extend(changes)

    assert list(rows) == changes


def test_a_key_may_be_as_long_as_a_record_can_say() -> None:
    rows = PackedRows()
    rows.extend([(b"K" + bytes(65_535), b"value"), (b"next", None)])

    assert list(rows) == [(b"K" + bytes(65_535), b"value"), (b"next", None)]


def test_what_changes_again_and_again_does_not_pile_up() -> None:
    rows = PackedRows()
    for number in range(100):
        rows.extend((b"%d" % key, b"%d" % number * 500) for key in range(50))
        rows.extend([(b"gone", None)])
        rows.thin()

    last = dict(rows)
    assert last == {b"gone": None} | {b"%d" % key: b"99" * 500 for key in range(50)}
    kept = len(list(rows)) / len(last)
    assert kept < 2 + packed_rows.SMALL_BYTES / (50 * 1_000)
