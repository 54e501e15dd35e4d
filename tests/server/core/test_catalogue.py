"""Topics, groups and kept values."""

import pytest

from cosmodrome_server.core.catalogue import Catalogue, CatalogueRecord
from cosmodrome_server.errors import BadRequest, ConsumerGroupNotFound, TopicNotFound
from cosmodrome_server.model.group import ConsumeFrom, CustomizedBackoff, ExponentialBackoff, Group
from cosmodrome_server.model.topic import Permission, Topic, TopicType

TOPIC = Topic("orders", TopicType.FIFO, 3, Permission.READ, 5, 6, 7, {"a": "b"})
GROUPS = (
    Group("billing", True, 3, CustomizedBackoff((1, 2)), ConsumeFrom.TIMESTAMP, 9, False),
    Group(
        "audit", backoff=ExponentialBackoff(1, 2, 1.5), lite_bind_topic="x", attributes={"k": "v"}
    ),
)


def apply(catalogue: Catalogue, record: CatalogueRecord) -> int:
    return catalogue.apply(record.kind, record.payload)


def filled() -> Catalogue:
    catalogue = Catalogue()
    apply(catalogue, catalogue.plan_topic(TOPIC, 1))
    for group in GROUPS:
        apply(catalogue, catalogue.plan_group(group, 1))
    apply(catalogue, catalogue.plan_keep("users/a", b"\x00\xff", 1))
    return catalogue


def test_everything_comes_back_from_records_and_from_rows() -> None:
    catalogue = filled()
    again = Catalogue()
    for key, value in catalogue.rows():
        again.restore(key, value)
    for each in (catalogue, again):
        assert each.topic("orders").topic == TOPIC
        assert [each.group(group.name).group for group in GROUPS] == list(GROUPS)
        assert each.kept == {"users/a": b"\x00\xff"}
    assert sorted(again.rows()) == sorted(catalogue.rows())


def test_only_what_changed_is_written_again() -> None:
    catalogue = filled()
    assert {key[:1] for key, _ in catalogue.dirty_rows()} == {b"N", b"T", b"G", b"K"}
    assert list(catalogue.dirty_rows()) == []
    apply(catalogue, catalogue.plan_keep("users/a", None, 1))
    assert list(catalogue.dirty_rows()) == [(b"Kusers/a", None)]
    apply(catalogue, catalogue.plan_topic_deletion("orders", 1))
    apply(catalogue, catalogue.plan_group_deletion("audit", 1))
    assert sorted(catalogue.dirty_rows()) == [(b"G\0\0\0\x02", None), (b"T\0\0\0\x01", None)]


def test_numbers_are_never_used_again() -> None:
    catalogue = filled()
    apply(catalogue, catalogue.plan_topic_deletion("orders", 1))
    assert apply(catalogue, catalogue.plan_topic(TOPIC, 1)) == 2
    again = Catalogue()
    apply(catalogue, catalogue.plan_topic_deletion("orders", 1))
    for key, value in catalogue.rows():
        again.restore(key, value)
    assert apply(again, again.plan_topic(TOPIC, 1)) == 3


def test_a_group_may_change_and_keeps_its_age() -> None:
    catalogue = filled()
    apply(catalogue, catalogue.plan_group(Group("audit", max_attempts=2, created_ms=99), 1))
    changed = catalogue.group("audit").group
    assert (changed.max_attempts, changed.created_ms) == (2, 0)


def test_what_cannot_be_is_refused() -> None:
    catalogue = filled()
    with pytest.raises(BadRequest, match="at least one queue"):
        catalogue.plan_topic(Topic("none", queues=0), 1)
    with pytest.raises(BadRequest, match="at least one attempt"):
        catalogue.plan_group(Group("none", max_attempts=0), 1)
    with pytest.raises(TopicNotFound):
        catalogue.plan_topic_deletion("nowhere", 1)
    with pytest.raises(ConsumerGroupNotFound):
        catalogue.plan_group_deletion("nobody", 1)
