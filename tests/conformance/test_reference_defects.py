"""What the reference gets wrong with messages, each defect a question to a real server of ours.

The last of them, GOAWAY for pings every 10 s, is tests/server/proxy/fronts/test_both_fronts.py
(`test_a_client_may_ping_often_without_calls`); what happens to the leases of a push consumer whose
stream closed without a good-bye, which takes 30 s, is tests/server/proxy/test_sessions.py.
"""

import asyncio

import grpc
import pytest

from tests.conformance.broker import server
from tests.conformance.questions import Question, asked_all
from tests.conformance.test_questions import creator
from tests.support.fronts import FRONTS

_TAKE = "settings SIMPLE_CONSUMER; send body=a; send body=b; send body=c; " + "receive; " * 3
_ONE = "settings SIMPLE_CONSUMER; send; receive; "
# Defect, kind of topic, steps (questions.py tells the notation), what ours answers.
DEFECTS = {
    "a dead letter by the handle of a change is another message": (
        "N",
        _TAKE + "change h3 30; bury n; receive? topic=$dlq group=$reader poll=5",
        "OK c",
    ),
    "a dead letter by the handle of a change loses the one meant": (
        "N",
        _TAKE + "change h3 30; bury n; ack h1 h2; receive? batch=32 poll=5",
        "MESSAGE_NOT_FOUND",
    ),
    "an altered handle makes a dead letter": (
        "N",
        _ONE + "alter; bury? h1",
        "INVALID_RECEIPT_HANDLE",
    ),
    "a handle of the reference's shape makes a dead letter": (
        "N",
        _ONE + "bury? forged",
        "INVALID_RECEIPT_HANDLE",
    ),
    "an altered handle leaves something in the dead letters": (
        "N",
        _ONE + "alter; bury h1; receive? topic=$dlq group=$reader poll=5",
        "TOPIC_NOT_FOUND",
    ),
    "a half message with a delivery time is taken and never delivered": (
        "T",
        "send? type=TRANSACTION due=1",
        "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
    ),
    "a change after the ack brings the message back": (
        "N",
        _ONE + "ack h1; change h1 0; receive? poll=5",
        "MESSAGE_NOT_FOUND",
    ),
    "two changes with one handle deliver twice": (
        "N",
        _ONE + "change h1 0; change h1 0; receive batch=32; receive? batch=32 poll=5",
        "MESSAGE_NOT_FOUND",
    ),
    "an ack under another group is answered OK": (
        "N",
        _ONE + "ack? h1 group=$reader",
        "INVALID_RECEIPT_HANDLE",
    ),
    "an ack under another topic is answered OK": (
        "N",
        _ONE + "ack? h1 topic=$other",
        "INVALID_RECEIPT_HANDLE",
    ),
    "an ack under another group spoils the right one": (
        "N",
        _ONE + "ack h1 group=$reader; ack? h1",
        "OK",
    ),
    "the answer to a batch has one entry": ("N", "send? body=a + body=b + body=c", "OK 3"),
    "renewed messages of a push consumer that left stay held": (
        "N",
        "settings PUSH_CONSUMER; send; receive renew; leave; receive? poll=5",
        "OK hello",
    ),
}
QUESTIONS = [
    Question(defect, {"N": "NORMAL", "T": "TRANSACTION"}[kind], "NORMAL", _steps, "", ours)
    for defect, (kind, steps, ours) in DEFECTS.items()
    for _steps in [tuple(step.strip() for step in steps.split(";"))]
]


async def _answers(front: str) -> dict[str, str]:
    async with server("--dev", "--set", "topics.auto_create=false", "--front", front) as ours:
        with grpc.insecure_channel(ours.endpoint) as channel:
            create = creator(channel)
            create("questions-reader", "group NORMAL")
            return await asked_all(ours.endpoint, QUESTIONS, create)


@pytest.fixture(scope="module", params=FRONTS)
def answers(request: pytest.FixtureRequest) -> dict[str, str]:
    return asyncio.run(_answers(request.param))


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_a_defect_of_the_reference_is_none_of_ours(
    question: Question, answers: dict[str, str]
) -> None:
    assert answers[question.name] == question.ours
