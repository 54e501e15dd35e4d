"""What the image, the compose file and the unit start, started from an empty environment.

No engine of containers is asked for: the command lines are read from the files, run as they are
but for places that only a container has (`/data`, host names, ports), and must do what they are
there for: serve, be healthy, make traffic, stop at their stop signal with exit code 0.
"""

import asyncio
import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from tests.support.empty_environment import ROOT, Environment, instructions, made
from tests.support.raw_client import OK, RawClient

FINAL_STAGE = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
UNIT = ROOT / "deploy/systemd/cosmodrome.service"
START_S, STOP_S = 60, 30
# Nothing that only development needs; pyarrow and pyspark are the pipeline's.
NOT_THERE = {"pytest", "ruff", "mypy", "hypothesis", "h2", "hatchling", "pyarrow", "pyspark"}


@pytest.fixture(
    scope="module", params=["linked", pytest.param("installed", marks=pytest.mark.slow)]
)
def environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    return made(tmp_path_factory.mktemp(request.param), is_linked=request.param == "linked")


def of_image(keyword: str) -> list[str]:
    """The words of an instruction in exec form, the last one of the final stage."""
    found = json.loads(instructions(keyword, FINAL_STAGE)[-1])
    assert isinstance(found, list)
    return found


def image_variables(environment: Environment, data: Path) -> dict[str, str]:
    """The environment of a container, its places replaced by ours."""
    (text,) = instructions("ENV", FINAL_STAGE)
    variables = dict(word.split("=", 1) for word in shlex.split(text))
    assert variables["COSMODROME_DATA"] == "/data"
    assert variables["COSMODROME_HOST"] == "0.0.0.0"
    variables["PATH"] = (
        variables["PATH"]
        .replace("/opt/cosmodrome", str(environment.home))
        .replace("$PATH", os.defpath)
    )
    return variables | {
        "COSMODROME_DATA": str(data),
        "COSMODROME_HOST": "127.0.0.1",
        "COSMODROME_SERVER_METRICS_HOST": "127.0.0.1",
        "COSMODROME_PORT": "0",
        "COSMODROME_METRICS_PORT": "0",
    }


class Container:
    """A process with the words and variables of a container, in no directory of its own."""

    def __init__(self, words: list[str], variables: Mapping[str, str], log: IO[str]) -> None:
        self.variables = dict(variables)
        program = shutil.which(words[0], path=self.variables["PATH"])
        assert program is not None, words[0]
        self.process = subprocess.Popen(
            [program, *words[1:]],
            env=self.variables,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def lines_until(self, pattern: str) -> re.Match[str]:
        """Read what it prints up to a line that matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"it ended without a line like {pattern}")

    def stop(self, number: int) -> tuple[int, str]:
        """Send the stop signal; exit code and what it printed last."""
        self.process.send_signal(number)
        printed, _ = self.process.communicate(timeout=STOP_S)
        return self.process.returncode, printed


class Broker(Container):
    """A container of the broker that is ready."""

    def __init__(self, words: list[str], variables: Mapping[str, str], log: IO[str]) -> None:
        super().__init__(words, variables, log)
        self.endpoint = self.lines_until(r"^ready: .* at (\S+:\d+)")[1]
        self.metrics = self.lines_until(r"metrics +http://(\S+)/metrics")[1]

    def scraped(self) -> str:
        """Its /metrics."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=START_S) as page:
            return str(page.read().decode())

    def health(self) -> int:
        """The exit code of the image's HEALTHCHECK."""
        (options,) = instructions("HEALTHCHECK", FINAL_STAGE)
        words = json.loads(options.partition("CMD ")[2])
        assert "127.0.0.1:5557/readyz" in words[-1]
        words[-1] = words[-1].replace("127.0.0.1:5557", self.metrics)
        check = Container(words, self.variables, subprocess.DEVNULL)  # type: ignore[arg-type] # a number is fine, too
        check.process.communicate(timeout=START_S)
        return check.process.returncode


@pytest.fixture
def log(tmp_path: Path) -> Iterator[IO[str]]:
    with (tmp_path / "stderr").open("w") as file:
        yield file
    assert "Traceback" not in (tmp_path / "stderr").read_text()


async def sends_and_receives(endpoint: str, topic: str, group: str) -> None:
    async with RawClient(endpoint) as client:
        sent = await client.send(client.message(topic, b"from outside"))
        assert sent.status.code == OK
        code, (received, *_) = await client.receive(topic, group)
        assert (code, received.body) == (OK, b"from outside")
        assert (await client.ack(topic, group, [received])).status.code == OK


def command(environment: Environment, *words: str, endpoint: str) -> None:
    program = environment.bin / "cosmodrome"
    subprocess.run([program, *words, "--endpoint", endpoint], check=True, stdout=subprocess.DEVNULL)


def test_nothing_that_development_needs_is_there(environment: Environment) -> None:
    assert environment.distributions().isdisjoint(NOT_THERE)
    assert "cosmodrome" in environment.distributions()


def test_the_image_serves_is_healthy_and_stops(
    environment: Environment, tmp_path: Path, log: IO[str]
) -> None:
    words = of_image("ENTRYPOINT") + of_image("CMD")
    variables = image_variables(environment, tmp_path / "data")
    broker = Broker(words, variables, log)
    assert broker.health() == 0
    command(environment, "topic", "create", "orders", endpoint=broker.endpoint)
    command(environment, "group", "create", "billing", endpoint=broker.endpoint)
    asyncio.run(sends_and_receives(broker.endpoint, "orders", "billing"))
    (name,) = instructions("STOPSIGNAL", FINAL_STAGE)
    code, printed = broker.stop(signal.Signals[name])
    assert (code, printed.splitlines()[-1]) == (0, "stopped")
    assert broker.health() != 0


def service_words(service: Mapping[str, Any]) -> list[str]:
    """What a service of the compose file runs; an entrypoint of its own drops the image's CMD."""
    entry = service.get("entrypoint")
    command = service.get("command")
    if entry is None:
        return of_image("ENTRYPOINT") + (command or of_image("CMD"))
    return [*entry, *(command or [])]


def interpolated(value: str) -> str:
    """`${NAME:-default}` of the compose file, with nothing set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


def test_the_compose_file_makes_traffic_that_arrives(
    environment: Environment, tmp_path: Path, log: IO[str]
) -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    variables = image_variables(environment, tmp_path / "data")
    broker = Broker(service_words(services["broker"]), variables, log)
    demo = []
    for name in ("producers", "consumers"):
        service = services[name]
        assert service["volumes"] == ["./examples:/examples:ro"]
        words = [word.replace("/examples/", f"{ROOT}/examples/") for word in service_words(service)]
        more = {key: interpolated(str(value)) for key, value in service["environment"].items()}
        assert more["COSMODROME_ENDPOINT"] == "broker:8081"
        more["COSMODROME_ENDPOINT"] = broker.endpoint
        demo.append(Container(words, {**variables, **more}, log))
    asyncio.run(some_are_consumed(broker))
    ended = [one.stop(signal.SIGTERM) for one in demo]
    assert [code for code, _ in ended] == [0, 0]
    numbers = [int(re.search(r"(\d+) messages", said)[1]) for _, said in ended]  # type: ignore[index] # they print it
    assert min(numbers) > 0
    code, _ = broker.stop(signal.SIGTERM)
    assert code == 0


async def some_are_consumed(broker: Broker) -> None:
    """Receive of the traffic, too, until the commuters were delivered a hundred."""
    delivered = re.compile(r'^rocketmq_messages_out_total\{.*"commuters".*\} (\d+)', re.MULTILINE)
    async with RawClient(broker.endpoint) as client:
        while True:
            code, messages = await client.receive("traffic", "onlookers")
            assert code == OK, "a receive waits until there are some"
            await client.ack("traffic", "onlookers", messages)
            shown = await asyncio.to_thread(broker.scraped)
            if sum(int(count) for count in delivered.findall(shown)) >= 100:
                return


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # keys as they are written
    parser.read_string(UNIT.read_text())
    return parser["Service"]


def test_the_unit_serves_takes_settings_up_and_stops(
    environment: Environment, tmp_path: Path
) -> None:
    settings = tmp_path / "cosmodrome.toml"
    settings.write_text("[server]\nport = 0\nmetrics_port = 0\n")
    places = {
        "/opt/cosmodrome": str(environment.home),
        "/etc/cosmodrome/cosmodrome.toml": str(settings),
        "/var/lib/cosmodrome": str(tmp_path / "data"),
    }
    start = unit()["ExecStart"]
    for place, ours in places.items():
        assert place in start
        start = start.replace(place, ours)
    name, _, value = unit()["Environment"].partition("=")
    with (tmp_path / "stderr").open("w+") as log:
        broker = Broker(shlex.split(start), {"PATH": os.defpath, name: value}, log)
        settings.write_text(settings.read_text() + "[flow]\ntopic_sends_per_s = 9\n")
        reload = unit()["ExecReload"].replace("$MAINPID", str(broker.process.pid))
        subprocess.run(shlex.split(reload), check=True)
        code, _ = broker.stop(signal.Signals[unit()["KillSignal"]])
        assert code == 0
        assert "settings taken up" in (tmp_path / "stderr").read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_accepts_the_unit(environment: Environment, tmp_path: Path) -> None:
    placed = tmp_path / UNIT.name
    placed.write_text(UNIT.read_text().replace("/opt/cosmodrome", str(environment.home)))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(placed)], check=False, capture_output=True, text=True
    )
    ours = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert ours == []
    assert done.returncode == 0, done.stderr
