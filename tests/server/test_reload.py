"""SIGHUP: what is taken up at once, what is named for the next start, what changes nothing."""

import asyncio
import logging
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server import reload
from cosmodrome_server.config import Config, ConfigError, load
from tests.support.proxy_world import ProxyWorld, message, run


@pytest.fixture(autouse=True)
def _level_as_before() -> object:
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


def settings(**overrides: str) -> Config:
    chosen = {name.replace("__", "."): value for name, value in overrides.items()}
    return load(None, environment={}, overrides=chosen)


def test_rates_and_the_log_level_are_taken_up_and_the_rest_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        assert (await world.send(*[message()] * 5)).status.code == pb.OK
        new = settings(flow__topics="normal=1", server__log_level="debug", store__scrub_mib_s="3")
        reload.take_up(world.context, lambda: new)
        assert logging.getLogger().level == logging.DEBUG
        assert (await world.send(message())).status.code == pb.OK
        assert (await world.send(message())).status.code == pb.TOO_MANY_REQUESTS
        assert caplog.messages == [
            "settings taken up: flow, server.log_level",
            "settings that change at the next start only: store.scrub_mib_s",
        ]

    run(scenario)


def test_settings_that_do_not_fit_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: ProxyWorld) -> None:
        def read() -> Config:
            raise ConfigError("flow.toml: no setting flow.topik; did you mean topics?")

        reload.take_up(world.context, read)
        assert caplog.messages == [
            "settings not taken up, the old ones stay: "
            "flow.toml: no setting flow.topik; did you mean topics?"
        ]
        assert (await world.send(message())).status.code == pb.OK
        assert (await world.send(message())).status.code == pb.TOO_MANY_REQUESTS

    run(scenario, flow__topic_sends_per_s="1")


def test_a_reload_during_the_start_is_done_after_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        loop = asyncio.get_running_loop()

        def read() -> Config:
            return settings(server__log_level="debug")

        asked = reload.remember_hangup(loop, read)
        os.kill(os.getpid(), signal.SIGHUP)
        await asked.wait()
        reload.on_hangup(loop, world.context, read, asyncio.Event(), asked)
        loop.remove_signal_handler(signal.SIGHUP)
        assert logging.getLogger().level == logging.DEBUG

    (tmp_path / "stdin").touch()
    with (tmp_path / "stdin").open() as stdin:
        monkeypatch.setattr(reload, "_STDIN", stdin.fileno())
        run(scenario)


def serving(tmp_path: Path, stdin: int) -> "subprocess.Popen[str]":
    file = tmp_path / "cosmodrome.toml"
    file.write_text("[flow]\ntopic_sends_per_s = 5\n")
    command = [sys.executable, "-m", "cosmodrome_server", "serve", "--config", str(file)]
    places = ["--data", str(tmp_path / "data"), "--port", "0", "--metrics-port", "0"]
    process = subprocess.Popen(
        [*command, *places],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready")
    return process


def test_a_service_reads_its_file_again(tmp_path: Path) -> None:
    with serving(tmp_path, subprocess.DEVNULL) as process:
        assert process.stderr is not None
        for text, said in (
            ("[flow]\ntopic_sends_per_s = 7\n", "settings taken up"),
            ("[flow]\ntopic_sends_per_s = no\n", "settings not taken up"),
        ):
            (tmp_path / "cosmodrome.toml").write_text(text)
            process.send_signal(signal.SIGHUP)
            while said not in process.stderr.readline():
                assert process.poll() is None
        process.terminate()
        assert process.wait(30) == 0


def test_a_server_whose_terminal_is_gone_stops(tmp_path: Path) -> None:
    ours, its = pty.openpty()
    try:
        with serving(tmp_path, its) as process:
            process.send_signal(signal.SIGHUP)
            assert process.wait(30) == 0
    finally:
        os.close(ours)
        os.close(its)
