"""Records and rows survive their bytes."""

from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_server.core import progress_row
from cosmodrome_server.core.lease import Lease
from cosmodrome_server.core.progress import Progress
from cosmodrome_server.core.records import (
    LEASE_SPAN,
    Ack,
    AckMany,
    ChangeInvisible,
    ConsumptionRecord,
    DeadLetter,
    Pop,
    Renew,
    SetOffset,
    record_at_ms,
)

U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
U16 = st.integers(0, (1 << 16) - 1)
MASK = st.integers(0, (1 << LEASE_SPAN) - 1)
NAME = st.text(max_size=40)
PLACE = (U64, U32, U32, U32)

RECORDS = st.one_of(
    st.builds(Pop, *PLACE, U64, U64, U32, MASK, MASK, U16, U32, U64, st.booleans(), NAME, NAME),
    st.builds(Ack, *PLACE, U64, U64),
    st.builds(AckMany, *PLACE, U64, U64, MASK),
    st.builds(ChangeInvisible, *PLACE, U64, U64, U64, U32, st.booleans()),
    st.builds(Renew, *PLACE, U64, U32, st.booleans()),
    st.builds(DeadLetter, *PLACE, U64, U64, U64),
    st.builds(SetOffset, *PLACE, U64, st.booleans()),
)


@given(RECORDS)
def test_a_record_is_what_its_bytes_say(record: ConsumptionRecord) -> None:
    payload = record.encode()
    assert type(record).decode(payload) == record
    assert record_at_ms(payload) == record.at_ms


LEASES = st.tuples(U64, U64, MASK, U64, U16, U64, U16, st.booleans(), NAME)


@given(
    U64,
    U64,
    st.dictionaries(st.integers(0, 1 << 40), U16, max_size=20),
    st.lists(LEASES, max_size=5, unique_by=lambda lease: lease[0]),
    st.tuples(st.dictionaries(NAME, st.lists(U64, max_size=3), max_size=3), st.booleans()),
)
def test_a_progress_is_what_its_row_says(
    floor: int,
    cursor: int,
    ready: dict[int, int],
    leases: list[tuple[int, int, int, int, int, int, int, bool, str]],
    rest: tuple[dict[str, list[int]], bool],
) -> None:
    progress = Progress((1, 2, 3), floor)
    progress.cursor = cursor
    progress.ready = ready
    progress.done.add(floor + 5)
    progress.done.add(floor + 700)
    progress.attempts, progress.is_reset_pending = rest
    progress.attempts.pop("", None)
    for lease_id, base, mask, deadline_ms, attempt, popped_ms, renewals, suspended, name in leases:
        lease = Lease(lease_id, base, mask, deadline_ms, attempt)
        lease.popped_ms, lease.renewals, lease.is_suspended = popped_ms, renewals, suspended
        lease.client_id = name
        progress.leases.add(lease)
    key, value = progress_row.encode_key(progress.place), progress_row.encode_value(progress)
    again = progress_row.decode(progress_row.decode_key(key), value)
    assert again.place == progress.place
    assert progress_row.encode_value(again) == value
    assert list(again.ready.items()) == list(ready.items())
    assert list(again.attempts.items()) == list(progress.attempts.items())
    assert floor + 700 in again.done
