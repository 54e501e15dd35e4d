"""What no input may bring about, whatever it says."""

import re

from google.protobuf.message import Message

from cosmodrome_proto import Method
from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_proto import definition_pb2 as pb
from tests.fuzz.inputs import decoded

# Pieces of the inside: a traceback's lines, an exception's name, an object's address.
_INSIDE = re.compile(
    r"Traceback|File \"|\.py\b|(Key|Type|Value|Index|Attribute)Error|0x[0-9a-f]{8}"
)
CALLER_SAID = 2_000


def told(answer: Message) -> tuple[int, str]:
    """The code and the sentence of an answer."""
    if isinstance(answer, admin.ChangeLogLevelResponse):
        return pb.OK, answer.remark
    if not answer.HasField("status"):
        return pb.OK, ""
    status: pb.Status = answer.status  # type: ignore[attr-defined] # every other one has it
    return status.code, status.message


def verdict(method: Method, payload: bytes, answers: list[Message]) -> str:
    """What is wrong with the answers of a call; "" for nothing."""
    if not answers and not method.client_streams:
        return f"{method.name} is answered with nothing\n{story(method, payload)}"
    for answer in answers:
        code, text = told(answer)
        is_known = code in pb.Code.values()
        if code == pb.INTERNAL_SERVER_ERROR or not is_known:
            return f"{method.name} is answered {code} {text!r}\n{story(method, payload)}"
        if _INSIDE.search(text):
            return f"{method.name} tells of its inside: {text!r}\n{story(method, payload)}"
    return ""


def story(method: Method, payload: bytes) -> str:
    """The call, to be made again."""
    return f"payload={payload.hex()[:CALLER_SAID]}\n{decoded(method, payload)[:CALLER_SAID]}"
