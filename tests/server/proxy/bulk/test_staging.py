"""StageMessages and PublishStaged: each message comes once, however often a publish is repeated."""

from array import array
from typing import Any

import pytest

from cosmodrome_proto import bulk_pb2 as bulk
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.model.topic import Topic
from cosmodrome_server.proxy.bulk import staging
from cosmodrome_server.proxy.security.directory import User
from cosmodrome_server.proxy.security.policies import Action, Policy
from tests.server.proxy.security.test_guard import signed
from tests.support.proxy_world import ProxyWorld, message, run


async def stage(world: ProxyWorld, *bodies: bytes, topic: str = "normal") -> int:
    content = rpc.SendMessageRequest(messages=[message(body, topic=topic) for body in bodies])
    request = bulk.StageMessagesRequest(job="nightly", content=content)
    answer = await world.call("StageMessages", request)
    assert answer.status.code == pb.OK
    return int(answer.token)


async def publish(world: ProxyWorld, batch: int, *tokens: int, **changes: Any) -> Any:
    named = {"job": "nightly", "lineage": "one", **changes}
    request = bulk.PublishStagedRequest(batch=batch, tokens=tokens, **named)
    return await world.call("PublishStaged", request)


async def bodies(world: ProxyWorld) -> list[bytes]:
    return sorted(one.body for one in await world.receive())


def test_nothing_is_seen_before_it_is_published_and_all_of_it_once() -> None:
    async def scenario(world: ProxyWorld) -> None:
        tokens = [await stage(world, b"a", b"b"), await stage(world, b"c")]
        assert await world.receive_nothing()
        for _ in range(2):
            answer = await publish(world, 0, *tokens)
            assert (answer.status.code, answer.is_done, answer.published) == (pb.OK, True, 2)
        assert await bodies(world) == [b"a", b"b", b"c"]
        assert await world.receive_nothing()

    run(scenario)


def test_a_publish_goes_on_where_it_was_also_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "PUBLISH_BYTES", 1)

    async def scenario(world: ProxyWorld) -> None:
        tokens = [await stage(world, body) for body in (b"a", b"b", b"c")]
        answer = await publish(world, 0, *tokens)
        assert (answer.is_done, answer.published) == (False, 1)
        await world.restart()
        for published in (2, 3):
            answer = await publish(world, 0, *tokens)
            assert (answer.is_done, answer.published) == (published == 3, published)
        assert await bodies(world) == [b"a", b"b", b"c"]

    run(scenario)


def test_a_batch_that_is_staged_anew_goes_on_with_what_was_staged_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task that is run again may have its rows in another order, and in other requests."""
    monkeypatch.setattr(staging, "PUBLISH_BYTES", 1)

    async def scenario(world: ProxyWorld) -> None:
        tokens = [await stage(world, body) for body in (b"a", b"b", b"c")]
        assert (await publish(world, 0, *tokens)).published == 1
        await world.restart()
        anew = [await stage(world, b"b"), await stage(world, b"c", b"a")]
        published = 1
        while not (answer := await publish(world, 0, *anew)).is_done:
            published += 1
            assert answer.published == published
        assert await bodies(world) == [b"a", b"b", b"c"]
        # The next batch is its own.
        assert (await publish(world, 1, await stage(world, b"d"))).is_done
        assert await bodies(world) == [b"d"]
        assert world.world.broker.kept(staging.TOKENS_PREFIX) == {}

    run(scenario)


def test_what_is_refused_on_the_way_leaves_the_tokens_for_who_asks_again() -> None:
    async def scenario(world: ProxyWorld) -> None:
        world.world.broker.create_topic(Topic("later"))
        tokens = [await stage(world, b"a"), await stage(world, b"b", topic="later")]
        world.world.broker.delete_topic("later")
        assert (await publish(world, 0, *tokens)).status.code == pb.TOPIC_NOT_FOUND
        (kept,) = world.world.broker.kept(staging.TOKENS_PREFIX).values()
        world.world.broker.create_topic(Topic("later"))
        assert (await publish(world, 0, 99)).is_done
        assert array("q", kept).tolist() == tokens
        assert await bodies(world) == [b"a"]
        assert world.world.broker.kept(staging.TOKENS_PREFIX) == {}

    run(scenario)


def test_what_is_gone_before_a_batch_is_published_is_told_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "PUBLISH_BYTES", 1)

    async def scenario(world: ProxyWorld) -> None:
        tokens = [await stage(world, b"a"), await stage(world, b"b")]
        assert (await publish(world, 0, *tokens)).published == 1
        world.world.log.forget_messages()
        answer = await publish(world, 0, await stage(world, b"a", b"b"))
        assert answer.status.code == pb.MESSAGE_NOT_FOUND
        assert "under another job all of the batch is published" in answer.status.message

    run(scenario)


def test_a_batch_has_so_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "TOKENS_MAX", 2)

    async def scenario(world: ProxyWorld) -> None:
        answer = await publish(world, 0, 0, 1, 2)
        assert answer.status.code == pb.BAD_REQUEST
        assert answer.status.message == "3 tokens in a batch, at most 2 may be"

    run(scenario)


def test_only_who_may_send_to_a_topic_publishes_what_was_staged_for_it() -> None:
    """A token is a number that anybody may count to."""

    async def scenario(world: ProxyWorld) -> None:
        directory = world.context.access.directory
        for name in ("ann", "eve"):
            directory.put_user(User(name, "secret"))
        directory.put_policy(Policy("ann", "Topic:normal", (Action.PUB,)))
        content = rpc.SendMessageRequest(messages=[message(b"a")])
        staging_request = bulk.StageMessagesRequest(job="nightly", content=content)
        ann, eve = signed("ann", "secret"), signed("eve", "secret")
        staged = await world.call("StageMessages", staging_request, headers=ann)
        assert staged.status.code == pb.OK
        asked = bulk.PublishStagedRequest(
            job="nightly", lineage="one", batch=0, tokens=[staged.token]
        )
        refused = await world.call("PublishStaged", asked, headers=eve)
        assert refused.status.code == pb.UNAUTHORIZED
        published = await world.call("PublishStaged", asked, headers=ann)
        assert (published.status.code, published.published) == (pb.OK, 1)
        await world.world.settle()
        bounds = [world.world.broker.bounds("normal", number) for number in range(2)]
        assert sum(one.max_offset for one in bounds) == 1

    run(scenario, security__authentication="true", security__authorization="true")


def test_an_empty_batch_is_done_and_keeps_no_other_from_being_published() -> None:
    """It names no topic, so anybody may publish one, also one of another's job."""

    async def scenario(world: ProxyWorld) -> None:
        for _ in range(2):
            answer = await publish(world, 99)
            assert (answer.status.code, answer.is_done, answer.published) == (pb.OK, True, 0)
        assert world.world.broker.kept(staging.MARK_PREFIX) == {}
        assert (await publish(world, 7, await stage(world, b"a"))).is_done
        assert await bodies(world) == [b"a"]

    run(scenario)


def test_an_earlier_batch_is_done_and_another_lineage_is_another_job() -> None:
    async def scenario(world: ProxyWorld) -> None:
        token = await stage(world, b"a")
        assert (await publish(world, 5, token)).is_done
        assert (await publish(world, 4, token)).is_done
        assert await bodies(world) == [b"a"]
        assert (await publish(world, 4, token, lineage="two")).is_done
        assert await bodies(world) == [b"a"]

    run(scenario)


@pytest.mark.parametrize("count", [1, 2])
def test_what_a_topic_refuses_leaves_no_mark_and_no_tokens(count: int) -> None:
    async def scenario(world: ProxyWorld) -> None:
        tokens = [await stage(world, b"a") for _ in range(count)]
        world.world.broker.delete_topic("normal")
        answer = await publish(world, 0, *tokens)
        assert answer.status.code == pb.TOPIC_NOT_FOUND
        assert world.world.broker.kept(staging.MARK_PREFIX) == {}
        assert world.world.broker.kept(staging.TOKENS_PREFIX) == {}

    run(scenario)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"job": ""}, pb.BAD_REQUEST, "1 to 200 characters"),
        ({"job": "x" * 201}, pb.BAD_REQUEST, "1 to 200 characters"),
        ({"lineage": ""}, pb.BAD_REQUEST, "lineage"),
        ({"lineage": "x" * 201}, pb.BAD_REQUEST, "lineage"),
        ({}, pb.ILLEGAL_OFFSET, "offset 99 is beyond the end, 1"),
    ],
)
def test_a_publish_that_cannot_be_is_refused(
    changes: dict[str, Any], code: int, words: str
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        await stage(world, b"a")
        answer = await publish(world, 0, 99, **changes)
        assert answer.status.code == code
        assert words in answer.status.message

    run(scenario)


@pytest.mark.parametrize(
    ("job", "messages", "code"),
    [
        ("", [message()], pb.BAD_REQUEST),
        ("nightly", [], pb.MESSAGE_CORRUPTED),
        ("nightly", [message(topic="nowhere")], pb.TOPIC_NOT_FOUND),
        ("nightly", [message(b"")], pb.MESSAGE_BODY_EMPTY),
        ("nightly", [message(), message(topic="mixed")], pb.BAD_REQUEST),
    ],
)
def test_what_no_send_would_take_is_not_staged(
    job: str, messages: list[pb.Message], code: int
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        content = rpc.SendMessageRequest(messages=messages)
        request = bulk.StageMessagesRequest(job=job, content=content)
        plain = await world.call("SendMessage", content)
        assert await world.code("StageMessages", request) == (
            code if job == "" else plain.status.code
        )

    run(scenario)


def test_of_very_many_marks_the_one_done_longest_ago_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "MARKS_MAX", 2)

    async def scenario(world: ProxyWorld) -> None:
        for lineage in ("one", "two", "three"):
            assert (await publish(world, 0, await stage(world, b"a"), lineage=lineage)).is_done
            world.clocks.pass_ms(1_000)
        kept = world.world.broker.kept(staging.MARK_PREFIX)
        assert sorted(kept) == ["published/nightly/three", "published/nightly/two"]

    run(scenario)


def test_marks_of_jobs_that_go_on_are_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "MARKS_MAX", 1)
    monkeypatch.setattr(staging, "PUBLISH_BYTES", 1)

    async def scenario(world: ProxyWorld) -> None:
        tokens = [await stage(world, b"a"), await stage(world, b"b")]
        assert not (await publish(world, 0, *tokens)).is_done
        answer = await publish(world, 0, *tokens, lineage="two")
        assert answer.status.code == pb.BAD_REQUEST
        assert answer.status.message == "1 jobs are publishing already"

    run(scenario)
