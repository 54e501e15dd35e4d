"""A message as people and scripts read it: what is set, then properties, then the body."""

import base64
import zlib

import typer

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.cli.connect import print_json, printable
from cosmodrome_server.cli.units import moment

# zlib or gzip, whichever the header says.
_EITHER_HEADER = zlib.MAX_WBITS | 32
_LINE_BODY_MAX = 120


def show_messages(messages: list[pb.Message], *, as_json: bool) -> None:
    """Print messages whole, one after another or as a JSON array."""
    if as_json:
        print_json([fields_of(message) for message in messages])
        return
    for number, message in enumerate(messages):
        if number:
            typer.echo("")
        for name, value in fields_of(message).items():
            text = " ".join(value) if isinstance(value, list) else str(value)
            typer.echo(printable(f"{name:<20}{text}"))


def fields_of(message: pb.Message) -> dict[str, object]:
    """What is set of a message, by name; a body that is no text is base64."""
    system = message.system_properties
    found: dict[str, object] = {
        "message": system.message_id,
        "topic": message.topic.name,
        "type": pb.MessageType.Name(system.message_type).lower(),
        "queue": system.queue_id,
        "offset": system.queue_offset,
        "tag": system.tag,
        "keys": list(system.keys),
        "message_group": system.message_group,
        "born": moment(system.born_timestamp),
        "stored": moment(system.store_timestamp),
        "delivery": moment(system.delivery_timestamp),
        "attempt": system.delivery_attempt,
        "origin_topic": system.dead_letter_queue.topic,
        "origin_message": system.dead_letter_queue.message_id,
    }
    kept = {name: value for name, value in found.items() if value or name in {"queue", "offset"}}
    properties = {f"property {k}": v for k, v in sorted(message.user_properties.items())}
    return {**kept, **properties, **_body(message)}


def line_of(message: pb.Message) -> str:
    """A message in a line: when and where it was stored, tag, keys, the beginning of its body."""
    system = message.system_properties
    (body,) = _body(message).values()
    text = " ".join(body.split())
    shown = text if len(text) <= _LINE_BODY_MAX else f"{text[:_LINE_BODY_MAX]}…"
    place = f"{system.queue_id}/{system.queue_offset}"
    words = (moment(system.store_timestamp), place, system.tag, ",".join(system.keys), shown)
    return printable("  ".join(word for word in words if word))


def _body(message: pb.Message) -> dict[str, str]:
    body = message.body
    try:
        if message.system_properties.body_encoding == pb.GZIP:
            body = zlib.decompress(body, _EITHER_HEADER)
        return {"body": body.decode()}
    except (UnicodeDecodeError, zlib.error):
        return {"body_base64": base64.b64encode(body).decode()}
