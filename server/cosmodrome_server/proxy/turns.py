"""Answers that take long to make: a part a turn of the loop, so that others are served between.

steps ──some a turn──▶ … ──▶ the answer, held until what it shows is durable
└── what is shown may go meanwhile: each step looks again
"""

import asyncio
import logging
from collections.abc import Iterator

from google.protobuf.message import Message

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.errors import BrokerError
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call

# A queue's bounds take some 2 µs.
QUEUES_PER_TURN = 2_048

_log = logging.getLogger(__name__)


def answer_in_turns(
    context: Context, rpc: str, call: Call, answer: Message, steps: Iterator[int]
) -> None:
    """Answer a unary call once `steps` have filled the answer in.

    Args:
        context: The proxy's.
        rpc: The method's name.
        call: Answered here; one that is cancelled ends the steps.
        answer: What they fill in.
        steps: Each says how much it was, in queues looked at.
    """
    _Steps(context, rpc, call, answer, steps).go_on()


class _Steps:
    def __init__(
        self, context: Context, rpc: str, call: Call, answer: Message, steps: Iterator[int]
    ) -> None:
        self._context = context
        self._rpc = rpc
        self._call = call
        self._answer = answer
        self._steps = steps
        self._is_gone = False
        call.on_cancel(self._give_up)

    def go_on(self) -> None:
        """Do a turn's part of it."""
        if self._is_gone:
            return
        context, call = self._context, self._call
        try:
            if self._is_more():
                asyncio.get_running_loop().call_soon(self.go_on)
                return
        except Exception as error:  # a bug is this call's only
            if not isinstance(error, BrokerError):
                _log.exception("%s failed", self._rpc)
            call.on_cancel(None)
            context.reply_late(self._rpc, call, error)
            return
        call.on_cancel(None)
        encoded = self._answer.SerializeToString()
        context.broker.reply_when_durable(context.sink, call, encoded)
        context.answered(self._rpc, pb.OK)

    def _is_more(self) -> bool:
        looked_at = 0
        for queues in self._steps:
            looked_at += queues
            if looked_at >= QUEUES_PER_TURN:
                return True
        return False

    def _give_up(self) -> None:
        self._is_gone = True
