"""What single records and moments do to deliveries, also such as only replay meets."""

import pytest

from cosmodrome_server.core.catalogue import Catalogue
from cosmodrome_server.core.consumptions import Consumptions
from cosmodrome_server.core.progress import Progress
from cosmodrome_server.core.records import (
    Ack,
    AckMany,
    ConsumptionRecord,
    DeadLetter,
    Pop,
    Renew,
    SetOffset,
)
from cosmodrome_server.core.settle import plan_release
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.topic import Topic

PLACE = (1, 1, 0)


def known() -> Catalogue:
    catalogue = Catalogue()
    topic = catalogue.plan_topic(Topic("orders", queues=8), 0)
    catalogue.apply(topic.kind, topic.payload)
    group = catalogue.plan_group(Group("billing", max_attempts=1), 0)
    catalogue.apply(group.kind, group.payload)
    return catalogue


def begun(*records: ConsumptionRecord) -> Consumptions:
    consumptions = Consumptions(known())
    consumptions.apply(SetOffset(0, *PLACE, 0))
    for record in records:
        consumptions.apply(record)
    return consumptions


def pop(lease_id: int, base: int, mask: int = 1, *, client_id: str = "", replaces: int = 0) -> Pop:
    count = 0 if replaces else mask.bit_length()
    return Pop(
        100,
        *PLACE,
        lease_id,
        base,
        count,
        mask,
        invisible_ms=60_000,
        replaces=replaces,
        is_auto_renewed=bool(client_id),
        client_id=client_id,
    )


def progress_of(consumptions: Consumptions) -> Progress:
    return consumptions.at(PLACE)


def inflight(consumptions: Consumptions) -> int:
    assert consumptions.by_pair[1, 1].inflight == progress_of(consumptions).inflight
    return consumptions.by_pair[1, 1].inflight


def saved(consumptions: Consumptions, rows: dict[bytes, bytes]) -> Consumptions:
    """What a start makes of the rows once those that changed are written."""
    for key, value in consumptions.dirty_rows():
        rows.pop(key, None)
        if value is not None:
            rows[key] = value
    again = Consumptions(known())
    for key, value in rows.items():
        again.restore(key, value)
    assert dict(again.rows()) == dict(consumptions.rows())
    return again


def test_a_client_keeps_its_other_leases_when_one_ends() -> None:
    consumptions = begun(pop(7, 0, client_id="a"), pop(8, 1, client_id="a"))

    consumptions.apply(Ack(200, *PLACE, 7, 0))
    assert [lease.lease_id for _, lease in consumptions.leases_of("a")] == [8]
    consumptions.apply(AckMany(200, *PLACE, 8, 1, 1))

    assert consumptions.leases_of("a") == []
    assert inflight(consumptions) == 0


def test_a_batch_that_is_acknowledged_in_parts_stays_its_clients_until_the_last() -> None:
    consumptions = begun(pop(7, 0, 0b111, client_id="a"))

    consumptions.apply(AckMany(200, *PLACE, 7, 0, 0b011))
    assert [lease.lease_id for _, lease in consumptions.leases_of("a")] == [7]
    assert inflight(consumptions) == 1
    consumptions.apply(DeadLetter(200, *PLACE, 7, 2, 0))

    assert consumptions.leases_of("a") == []


def test_acknowledgements_of_a_lease_that_is_not_known_settle_its_messages() -> None:
    consumptions = begun(pop(7, 0, 0b11))
    consumptions.advance(100_000)
    assert progress_of(consumptions).ready == {0: 2, 1: 2}

    consumptions.apply(AckMany(100_001, *PLACE, 99, 0, 0b11))

    assert progress_of(consumptions).done.floor == 2
    assert progress_of(consumptions).ready == {}
    assert inflight(consumptions) == 0


def test_a_lease_that_is_taken_over_in_part_stays_its_clients() -> None:
    consumptions = begun(pop(7, 0, 0b11, client_id="a"), pop(8, 0, 1, client_id="a", replaces=7))
    assert [lease.lease_id for _, lease in consumptions.leases_of("a")] == [7, 8]

    consumptions.apply(pop(9, 1, 1, client_id="a", replaces=7))

    assert [lease.lease_id for _, lease in consumptions.leases_of("a")] == [8, 9]
    assert inflight(consumptions) == 2


def test_a_renewal_of_a_lease_that_is_not_known_changes_nothing() -> None:
    consumptions = begun(pop(7, 0))
    before = dict(consumptions.rows())

    consumptions.apply(Renew(200, *PLACE, 99, 1_000, is_last=False))

    assert dict(consumptions.rows()) == before


def test_a_renewed_lease_is_asked_for_before_its_new_end_only() -> None:
    consumptions = begun(pop(7, 0, client_id="a"))
    first_ms = consumptions.next_deadline_ms()
    assert first_ms == 100 + 60_000 - 10_000
    consumptions.apply(Renew(200, *PLACE, 7, 180_000, is_last=False))

    assert consumptions.due_renewals(first_ms) == []
    ((_, lease),) = consumptions.due_renewals(200 + 180_000 - 10_000)
    assert (lease.lease_id, lease.renewals) == (7, 1)
    consumptions.apply(Renew(171_000, *PLACE, 7, 1_000, is_last=True))
    assert consumptions.due_renewals(171_900) == []
    consumptions.advance(172_000)

    assert inflight(consumptions) == 0
    assert progress_of(consumptions).ready == {0: 2}


def test_a_lease_that_is_renewed_twice_to_the_same_end_is_asked_for_once() -> None:
    consumptions = begun(pop(7, 0, client_id="a"))
    for _ in range(2):
        consumptions.apply(Renew(200, *PLACE, 7, 60_000, is_last=False))

    assert [lease.lease_id for _, lease in consumptions.due_renewals(50_200)] == [7]


def test_the_lease_of_a_client_that_is_gone_is_not_made_longer() -> None:
    consumptions = begun(pop(7, 0, client_id="a"))
    ((progress, lease),) = consumptions.leases_of("a")

    assert plan_release(progress, lease, lease.deadline_ms - 1_000) is None
    released = plan_release(progress, lease, lease.deadline_ms - 1_001)
    assert released is not None
    assert released.is_last


def test_a_repeated_receive_has_nothing_to_take_over_once_all_is_settled() -> None:
    record = pop(7, 0)
    record.attempt_id = "receive 1"
    consumptions = begun(record)
    assert progress_of(consumptions).attempts == {"receive 1": [7]}

    consumptions.apply(Ack(200, *PLACE, 7, 0))

    assert progress_of(consumptions).attempts == {}
    assert progress_of(consumptions).is_at_rest


def test_a_start_knows_what_was_delivered_too_often_and_packs_what_piled_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cosmodrome_server.core.consumptions._SWEEP_MIN", 32)
    rows: dict[bytes, bytes] = {}
    consumptions = begun(pop(7, 0), *(pop(8 + each, 1 + each) for each in range(40)))
    consumptions.apply(Renew(100, *PLACE, 7, 0, is_last=True))
    consumptions.advance(100)
    assert list(consumptions.exhausted) == [(PLACE, 0)]

    again = saved(consumptions, rows)

    assert list(again.exhausted) == [(PLACE, 0)]
    assert inflight(again) == 40
    assert again.next_deadline_ms() == consumptions.next_deadline_ms() == 60_100
    again.advance(60_100)
    assert len(progress_of(again).ready) == 41


def test_a_topic_that_is_deleted_takes_its_progress_along_at_rest_or_not() -> None:
    rows: dict[bytes, bytes] = {}
    consumptions = begun(pop(7, 0, client_id="a"), SetOffset(0, 1, 1, 1, 5))
    consumptions.apply(SetOffset(0, 1, 1, 2, 0))
    consumptions.apply(Pop(100, 1, 1, 2, 9, 0, 1, 1))
    consumptions.advance(100)
    saved(consumptions, rows)
    assert len(rows) == 3
    assert set(consumptions.by_pair[1, 1].awake) == {0, 2}
    # One changes and stays awake, one is laid down anew, and both go before the checkpoint.
    consumptions.apply(Renew(200, *PLACE, 7, 60_000, is_last=False))
    consumptions.apply(SetOffset(200, 1, 1, 1, 6))
    consumptions._lay_down()

    consumptions.drop_topic(1)

    assert consumptions.exhausted == {}
    assert consumptions.became_ready == {}
    assert consumptions.leases_of("a") == []
    saved(consumptions, rows)
    assert rows == {}


def test_the_queues_a_group_has_begun_on_are_counted_at_rest_or_not() -> None:
    consumptions = begun()
    consumptions.apply(SetOffset(0, 1, 1, 3, 7))
    consumption = consumptions.by_pair[1, 1]
    assert consumption.queues == len([*consumption.keys()]) == 2
    consumption.rest(3)
    consumptions.apply(SetOffset(0, 1, 1, 3, 9))
    consumption.rest(0)
    assert consumption.queues == len([*consumption.keys()]) == 2

    restored = Consumptions(known())
    for key, value in consumptions.rows():
        restored.restore(key, value)
    assert restored.by_pair[1, 1].queues == 2


def test_only_what_is_ready_again_is_waited_on() -> None:
    consumptions = begun(pop(7, 0))
    consumption = consumptions.by_pair[1, 1]
    assert not consumption.is_waited_on
    consumptions.advance(60_100)
    assert consumption.is_waited_on
    consumptions.apply(Ack(60_100, *PLACE, 0, 0))
    assert not consumption.is_waited_on


def test_progress_is_laid_down_when_many_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosmodrome_server.core.consumptions._LAY_MIN", 4)
    rows: dict[bytes, bytes] = {}
    consumptions = begun(*(SetOffset(0, 1, 1, queue_id, 7) for queue_id in range(4)))

    consumptions.advance(1)

    (consumption,) = consumptions.by_pair.values()
    assert (consumption.awake, consumption.queues) == ({}, 4)
    assert 3 in consumption
    assert 4 not in consumption
    assert consumption.find(4) is None
    assert consumption.cursor(3) == consumption.at(3).cursor == 7
    again = saved(consumptions, rows)
    assert len(rows) == 4
    assert list(consumptions.dirty_rows()) == []
    assert again.find((1, 1, 2)) is not None
    assert consumptions.at((1, 1, 2)) is consumptions.at((1, 1, 2))
