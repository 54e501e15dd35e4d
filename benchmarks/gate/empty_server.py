"""A gate whose handlers do next to nothing, in a process of its own.

    python -m benchmarks.gate.empty_server DIRECTORY

SendMessage answers with bytes made beforehand. ReceiveMessage encodes a status, 32 messages
of 100 bytes and a timestamp afresh for each call, as a broker must. Prints its port.
"""

import asyncio
import sys
from pathlib import Path

import cosmodrome_gate as gate

from benchmarks.requests import SERVICE
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.proxy.development_certificate import development_certificate

METHODS = [
    (f"/{SERVICE}/SendMessage", gate.UNARY),
    (f"/{SERVICE}/ReceiveMessage", gate.SERVER_STREAM),
]
SENT = rpc.SendMessageResponse(
    status=pb.Status(code=pb.OK, message="OK"),
    entries=[rpc.SendResultEntry(status=pb.Status(code=pb.OK), message_id="0" * 34, offset=1)],
).SerializeToString()
MESSAGES = 32


def received() -> list[bytes]:
    """The 34 messages of a full receive, encoded now."""
    first, last = rpc.ReceiveMessageResponse(), rpc.ReceiveMessageResponse()
    first.status.code = pb.OK
    last.delivery_timestamp.FromSeconds(1)
    messages = [first.SerializeToString()]
    for number in range(MESSAGES):
        answer = rpc.ReceiveMessageResponse()
        answer.message.topic.name = "bench"
        answer.message.body = b"x" * 100
        system = answer.message.system_properties
        system.message_id = f"01{number:032X}"
        system.receipt_handle = "h" * 40
        messages.append(answer.SerializeToString())
    messages.append(last.SerializeToString())
    return messages


async def main(directory: Path) -> None:
    """Serve until killed."""
    chain, key = development_certificate(directory)
    files = chain.read_bytes(), key.read_bytes()
    server = gate.Server(
        METHODS, tcp=[("127.0.0.1", 0)], tls="auto", certificate=files[0], key=files[1]
    )

    def turn() -> None:
        replies: list[gate.Reply] = []
        for kind, number, method, _message, _request in server.take():
            if kind == gate.CALL:
                replies.append((number, received()) if method else (number, SENT))
        server.reply(replies)

    asyncio.get_running_loop().add_reader(server.fileno(), turn)
    print(server.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
