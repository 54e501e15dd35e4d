"""Which front serves, and what is said of it at start."""

import asyncio
import sys
from pathlib import Path

import pytest

from cosmodrome_server import app as application
from cosmodrome_server.clock import SystemClock
from cosmodrome_server.config import ConfigError, load
from cosmodrome_server.greeting import lines
from cosmodrome_server.proxy import fronts
from tests.support.fronts import FRONTS

NOTE = "the native gate cannot be imported"


@pytest.fixture(params=["missing", "broken", "old"])
def without_gate(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> str:
    """A Python without the gate, or with one that was built for another, or long ago."""
    if request.param == "missing":
        monkeypatch.setitem(sys.modules, "cosmodrome_gate", None)
        return "cosmodrome_gate"
    monkeypatch.delitem(sys.modules, "cosmodrome_gate", raising=False)
    is_old = request.param == "old"
    text = "class Server: ..." if is_old else 'raise ImportError("undefined symbol: PyFoo")'
    (tmp_path / "cosmodrome_gate.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return "cannot import name" if is_old else "undefined symbol"


def chosen(front: str) -> str:
    return fronts.chosen(load(None, environment={}, overrides={"server.front": front}))


def test_auto_takes_the_gate_where_it_can_be_imported() -> None:
    pytest.importorskip("cosmodrome_gate")
    assert (chosen("auto"), chosen("gate"), chosen("grpcio")) == ("gate", "gate", "grpcio")


@pytest.mark.usefixtures("without_gate")
def test_auto_does_without_the_gate() -> None:
    assert (chosen("auto"), chosen("grpcio")) == ("grpcio", "grpcio")


def test_a_gate_that_is_asked_for_and_not_there_is_said_with_the_reason(without_gate: str) -> None:
    with pytest.raises(ConfigError, match=f"server.front is gate.*{without_gate}.*make gate"):
        chosen("gate")


def greeting(front: str, data: Path) -> str:
    """What a server with this setting says when it has started."""
    overrides = {
        "server.front": front,
        "server.data": str(data),
        "server.port": "0",
        "server.metrics_port": "0",
        "tls.mode": "off",
        "store.reserve_mib": "0",
    }
    config = load(None, environment={}, overrides=overrides)

    async def main() -> str:
        clock = SystemClock()
        app = await application.start(config, application.open_log(config, clock), clock)
        try:
            return "\n".join(lines(config, app.context.front, app.front.address, None))
        finally:
            await app.stop()

    return asyncio.run(main())


@pytest.mark.parametrize("front", FRONTS)
def test_the_front_is_said_at_start(front: str, tmp_path: Path) -> None:
    said = greeting(front, tmp_path)
    assert f"(front {front}," in said
    assert NOTE not in said


@pytest.mark.usefixtures("without_gate")
def test_auto_without_the_gate_says_what_is_missing(tmp_path: Path) -> None:
    said = greeting("auto", tmp_path / "data")
    assert "(front grpcio," in said
    assert NOTE in said


def test_a_socket_that_cannot_be_had_is_named_with_its_settings(tmp_path: Path) -> None:
    pytest.importorskip("cosmodrome_gate")
    path = tmp_path / "missing" / "broker.sock"
    overrides = {"server.port": "0", "server.unix_socket": str(path), "tls.mode": "off"}
    config = load(None, environment={}, overrides=overrides)
    from cosmodrome_server.proxy.fronts.gate import GateFront

    with pytest.raises(OSError, match=r"broker\.sock: .*server\.unix_socket"):
        asyncio.run(GateFront([], config, None).start())
