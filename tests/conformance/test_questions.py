"""The questions of questions.txt, asked of a real server on each front.

Every answer is the one the file has for ours, and where that is not the reference's, docs/wire.md
says why. `make probe` asks all the questions of others, where they are.
"""

import asyncio
from collections.abc import Callable

import grpc
import pytest

from tests.conformance.broker import server
from tests.conformance.explained import PAGE, explanations, section_of
from tests.conformance.probe import alike, lines
from tests.conformance.probe_admin import obey
from tests.conformance.questions import FILE, Question, asked_all, questions
from tests.support.fronts import FRONTS

ALL = questions(FILE.read_text())
_FLAGS = ("--dev", "--set", "topics.auto_create=false")


async def _answers(front: str) -> dict[str, str]:
    async with server(*_FLAGS, "--front", front) as ours:
        with grpc.insecure_channel(ours.endpoint) as channel:
            return await asked_all(ours.endpoint, ALL, creator(channel))


def creator(channel: grpc.Channel) -> Callable[[str, str], None]:
    """What `asked_all` makes topics and groups with, at a server of ours."""

    def create(name: str, kind: str) -> None:
        what, _, of_group = kind.partition(" ")
        line = f"create-{what} {name} {of_group}" if of_group else f"create-topic {name} {kind} 1"
        assert obey(channel, line) == ""

    return create


@pytest.fixture(scope="module", params=FRONTS)
def answers(request: pytest.FixtureRequest) -> dict[str, str]:
    return asyncio.run(_answers(request.param))


@pytest.mark.parametrize("question", ALL, ids=lambda question: question.name)
def test_the_answer_is_the_one_that_is_written_down(
    question: Question, answers: dict[str, str]
) -> None:
    assert answers[question.name] == question.ours


@pytest.mark.parametrize("question", ALL, ids=lambda question: question.name)
def test_an_answer_that_is_not_the_reference_s_is_explained(question: Question) -> None:
    section = section_of(question.name, explanations(PAGE.read_text()))
    assert question.ours == question.reference or section, question


def test_names_are_unique() -> None:
    assert len({question.name for question in ALL}) == len(ALL)


def test_a_name_on_the_page_continues_the_one_before_it() -> None:
    page = "## Sending\n*send.batch.3*, *.fifo-\\** and *-x*; *very* important\n"
    assert [one.pattern for one in explanations(page)] == [
        "send.batch.3",
        "send.batch.fifo-*",
        "send.batch.fifo-x",
    ]
    assert section_of("send.batch.fifo-two", explanations(page)) == "Sending"
    assert section_of("send.batch.2", explanations(page)) == ""


def test_answers_of_a_probe_are_alike_when_times_are_near_and_texts_differ() -> None:
    text = "a | sent | b | OK | OK 20000 | theirs | port: 8081; 5.0 s\n"
    reference = lines(text)["a"]
    assert alike(reference, ["OK", "OK 20000", "ours", "port: <port>; 5.4 s"])
    assert not alike(reference, ["OK", "OK 20000", "theirs", "port: <port>; 6.4 s"])
    assert not alike(reference, ["OK", "BAD_REQUEST 40000", "theirs", "port: <port>; 5.0 s"])
    assert not alike(reference, ["OK", "OK 20000", "theirs", "port: <port>; none"])
