"""The examples run and say what they should."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cosmodrome.testing import TestBroker

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_demo_sends_redelivers_buries_and_stops_cleanly() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py")],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for words in ("sent 1000 messages", "redelivered", "dead letters of tour: 1", "exit code 0"):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("kind", "call", "words"),
    [("produce", "SendMessage", "sent"), ("consume", "ReceiveMessage", "consumed")],
)
def test_traffic_runs_until_it_is_told_to_stop(kind: str, call: str, words: str) -> None:
    with TestBroker() as broker, broker.recording() as calls:
        environment = {**os.environ, "COSMODROME_ENDPOINT": broker.endpoint}
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "traffic.py"), kind],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6_000):  # before it works it may not have heard of SIGTERM
            if call in calls or process.poll() is not None:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        told, _ = process.communicate(timeout=60)
    assert call in calls
    assert process.returncode == 0
    assert told.startswith(words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("send", "sent "),
        ("receive", "received hello"),
        ("push", "consumed hello"),
        ("delay", "came ['now']"),
        ("fifo", "in order ['step 0', 'step 1', 'step 2']"),
        ("transaction", "committed"),
        ("pull", "read ['hello']"),
        ("listeners", "replayed a transaction of 3"),
    ],
)
def test_an_example_does_what_it_says(name: str, words: str) -> None:
    with TestBroker() as broker:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / f"{name}.py"), broker.endpoint],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
