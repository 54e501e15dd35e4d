"""`python -m tests.conformance.probe_admin HOST:PORT batch`: topics and groups for a probe.

Reads lines `create-topic NAME TYPE QUEUES` and `create-group NAME TYPE [MAX_RETRIES]`, and makes
each by the Control service on one channel.
"""

import sys

import grpc

from cosmodrome_proto import control_pb2, methods


def main() -> int:
    endpoint, word = sys.argv[1:3]
    assert word == "batch", f"what is {word}? This program knows batch"
    with grpc.insecure_channel(endpoint) as channel:
        for line in sys.stdin:
            wrong = obey(channel, line)
            if wrong:
                print(wrong)
                return 1
    return 0


def obey(channel: grpc.Channel, line: str) -> str:
    """Do what a line says; what went wrong, "" for nothing."""
    name, request = _request(line.split())
    method = next(m for m in methods("cosmodrome.v1.Control") if m.name == name)
    call = channel.unary_unary(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
    answer = call(request, timeout=20, metadata=(("x-mq-client-id", "probe-admin"),))
    if answer.HasField("status") and answer.status.code != 20_000:
        return f"{line.strip()}: {answer.status.code} {answer.status.message}"
    return ""


def _request(words: list[str]) -> tuple[str, object]:
    """The call of a line."""
    what, name, kind, *rest = words
    number = int(rest[0]) if rest else 0
    if what == "create-topic":
        topic = control_pb2.Topic(name=name, type=kind, queues=number)
        return "CreateTopic", control_pb2.CreateTopicRequest(topic=topic)
    group = control_pb2.Group(
        name=name, fifo=kind == "FIFO", max_attempts=number + 1 if rest else 0
    )
    return "CreateGroup", control_pb2.CreateGroupRequest(group=group)


if __name__ == "__main__":
    sys.exit(main())
