"""What each bound does under load: is it held, what does a refusal cost, who else feels it.

    flood ──▶ the bounded topic, group, client or class     admitted a second, against the setting
    visitor ─▶ another topic, 200 sends a second            its time a call, alone and beside

The flood comes from h2load, all it can; admitted and refused are the server's own counts
(`cosmodrome_responses_total`), read twice while it goes on, so that the first second's worth is
left out. A refusal's cost is the server's processor time over the flood, divided by its calls,
with a bound so low that nearly all of them are refused.
"""

import re
import socket
import subprocess
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass

from benchmarks.loads import HEADERS
from benchmarks.requests import SERVICE, framed_file, send_request
from benchmarks.servers import Target, ours
from cosmodrome_proto import Duration
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc

Figures = dict[str, float]
RATE = 1_000
CALLS_UNDER_WAY = 16
WAITERS = 50
_WARM_S, _CONNECTIONS, _STREAMS = 2, 8, 16
_VISITS_PER_CONNECTION, _VISITORS = 50, 4
_SAMPLE = re.compile(r"^cosmodrome_responses_total\{(.*)\} (\S+)$", re.MULTILINE)
_WAITING = re.compile(r"^cosmodrome_waiting_receives\{.*\} (\S+)$", re.MULTILINE)


@dataclass
class _Scraped:
    """A server and its /metrics."""

    target: Target
    port: int

    def text(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as page:
            return str(page.read().decode())

    def answers(self, method: str) -> Counter[str]:
        """How many calls of a method were answered with each code so far."""
        found: Counter[str] = Counter()
        for labels, value in _SAMPLE.findall(self.text()):
            if f'rpc="{method}"' in labels:
                code = re.search(r'code="(\w+)"', labels)
                assert code is not None
                found[code[1]] += int(float(value))
        return found


def _load(
    target: Target, request: bytes, method: str, seconds: int, *knobs: str
) -> "subprocess.Popen[str]":
    """Begin a load that lasts so many seconds after its warm-up."""
    with framed_file(request) as file:
        headers = [word for header in HEADERS for word in ("-H", header)]
        url = f"http://{target.endpoint}/{SERVICE}/{method}"
        command = ["h2load", "-D", str(seconds), "-d", str(file), *knobs, *headers, url]
        begun = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        time.sleep(1)  # it has read the file
    return begun


def _flood(server: _Scraped, request: bytes, method: str, seconds: int) -> Figures:
    """Flood one method; admitted and refused a second, and the server's time a call."""
    knobs = ("-c", str(_CONNECTIONS), "-m", str(_STREAMS))
    flood = _load(server.target, request, method, seconds + 2 * _WARM_S, *knobs)
    time.sleep(_WARM_S - 1)
    before, cpu_s, began = server.answers(method), server.target.cpu_s(), time.monotonic()
    time.sleep(seconds)
    after, cpu_s = server.answers(method), server.target.cpu_s() - cpu_s
    passed = time.monotonic() - began
    waiting = _WAITING.search(server.text())
    flood.communicate(timeout=60)
    calls = after - before
    refused = calls["TOO_MANY_REQUESTS"]
    return {
        "admitted_per_s": round((calls.total() - refused) / passed, 1),
        "refused_per_s": round(refused / passed, 1),
        "cpu_us_per_call": round(cpu_s / max(1, calls.total()) * 1e6, 1),
        "waiting_receives": float(waiting[1]) if waiting else 0,
    }


def _visit_ms(server: _Scraped, seconds: int) -> float:
    """The mean time of a send to a topic nobody bounds, at a modest rate."""
    knobs = ("-c", str(_VISITORS), "-m", "1", f"--rps={_VISITS_PER_CONNECTION}")
    visit = _load(server.target, send_request("free", 1), "SendMessage", seconds, *knobs)
    said, _ = visit.communicate(timeout=seconds + 60)
    found = re.search(r"time for request:\s+\S+\s+\S+\s+([\d.]+)(us|ms|s)", said)
    assert found is not None, said
    return round(float(found[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[found[2]], 3)


def _receive(group: str, topic: str) -> bytes:
    return rpc.ReceiveMessageRequest(
        group=pb.Resource(name=group),
        message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=-1),
        batch_size=1,
        invisible_duration=Duration(seconds=60),
        long_polling_timeout=Duration(seconds=20),
    ).SerializeToString()


def _settings(bound: str) -> list[str]:
    return {
        "topic": ["flow.topics=bounded={rate}"],
        "group": ["flow.groups=bounded={rate}"],
        "client": ["flow.client_calls_per_s={rate}"],
        "class": [f"flow.calls_per_class={CALLS_UNDER_WAY}"],
        "waiters": [f"delivery.waiters_per_group={WAITERS}"],
    }[bound]


def _one(bound: str, front: str, rate: int, seconds: int, *, visited: bool = False) -> Figures:
    """A server with one bound, under its flood; with a visitor instead of figures of the flood."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    chosen = [word for one in _settings(bound) for word in ("--set", one.format(rate=rate))]
    with ours("--front", front, "--metrics-port", str(port), *chosen) as target:
        server = _Scraped(target, port)
        for topic in ("bounded", "free", "empty"):
            target.topic(topic)
        target.group("bounded")
        method, request = "SendMessage", send_request("bounded", 1)
        if bound == "client":
            method = "QueryRoute"
            request = rpc.QueryRouteRequest(topic=pb.Resource(name="free")).SerializeToString()
        elif bound in {"group", "waiters"}:
            method = "ReceiveMessage"
            request = _receive("bounded", "free" if bound == "group" else "empty")
        if bound == "group":
            _fill(server, 2 * rate * (seconds + 3 * _WARM_S))
        if not visited:
            before_mib = target.rss_mib()
            figures = _flood(server, request, method, seconds)
            return {**figures, "rss_more_mib": round(target.rss_mib() - before_mib, 1)}
        alone_ms = _visit_ms(server, seconds)
        knobs = ("-c", "1", "-m", "1", f"--rps={5 * rate}")
        flood = _load(target, request, method, seconds + 2 * _WARM_S, *knobs)
        with_ms = _visit_ms(server, seconds)
        flood.communicate(timeout=60)
        return {"visit_alone_ms": alone_ms, "visit_beside_flood_ms": with_ms}


def _fill(server: _Scraped, messages: int) -> None:
    fill = _load(server.target, send_request("free", 32), "SendMessage", 1, "-n", "32")
    fill.communicate(timeout=60)
    while server.answers("SendMessage")["OK"] * 32 < messages:
        _load(server.target, send_request("free", 32), "SendMessage", 1, "-c4").communicate()


def measured(front: str, seconds: int) -> dict[str, Figures]:
    """Each bound under its flood; `topic refusals` with a bound of 1, `topic visit` beside."""
    found = {bound: _one(bound, front, RATE, seconds) for bound in ("topic", "group", "client")}
    found["topic refusals"] = _one("topic", front, 1, seconds)
    found["group refusals"] = _one("group", front, 1, seconds)
    found["topic visit"] = _one("topic", front, RATE, seconds, visited=True)
    found["class"] = _one("class", front, RATE, seconds)
    found["waiters"] = _one("waiters", front, RATE, seconds)
    return found
