"""Many messages of a stream in one gRPC message, for clients that ask for it.

A gRPC library spends more on each message of a stream than our SDK on consuming one. What a
client reads that sends the header `x-cosmodrome-packed` is described in
proto/cosmodrome/v1/packed.proto: the responses of the protocol, one behind the other.
"""

from collections.abc import Sequence

from cosmodrome_server.config import Config
from cosmodrome_server.proxy.front import Call

PACKED = "x-cosmodrome-packed"
# A gRPC message of more is begun anew: a reader holds all of one before it sees the first.
PACK_BYTES = 1 << 20


def packed(config: Config, call: Call, responses: list[bytes]) -> list[bytes]:
    """The responses as the client reads them; under `server.strict` one by one, always."""
    if call.headers.get(PACKED) is None or config.server.strict:
        return responses
    if sum(map(len, responses)) <= PACK_BYTES:
        return [b"".join(responses)]
    return _in_packs(responses)


def _in_packs(responses: Sequence[bytes]) -> list[bytes]:
    packs: list[bytes] = []
    begin, size = 0, 0
    for end, response in enumerate(responses):
        if size and size + len(response) > PACK_BYTES:
            packs.append(b"".join(responses[begin:end]))
            begin, size = end, 0
        size += len(response)
    packs.append(b"".join(responses[begin:]))
    return packs
