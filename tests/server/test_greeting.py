"""What a start says."""

from pathlib import Path

import pytest

from cosmodrome_server import greeting
from cosmodrome_server.config import load

DEV = {"server.dev": "true"}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (DEV, ("open to everybody", "created on first use", "message send hello world")),
        ({}, ("definitions apply FILE", "cosmodrome status --endpoint 127.0.0.1:9")),
        ({"security.authentication": "true"}, ("every user may do everything",)),
        (
            {"security.authentication": "true", "security.authorization": "true"},
            ("rules say who may do what",),
        ),
        ({"server.front": "auto"}, ("native gate cannot be imported",)),
    ],
)
def test_a_start_says_what_is_open_and_how_to_begin(
    overrides: dict[str, str], said: tuple[str, ...]
) -> None:
    told = told_by(overrides)
    for words in said:
        assert words in told


def test_what_to_try_works_as_it_stands(tmp_path: Path) -> None:
    data = {"server.data": str(tmp_path)}
    first, *_, attempt = told_by(DEV, "::1").splitlines()
    assert first.split()[5] == "[::1]:9"
    assert attempt.endswith("--endpoint [::1]:9")
    assert told_by(DEV, "0.0.0.0").endswith("--endpoint 127.0.0.1:9")
    certificate = tmp_path.resolve() / "tls" / "development.crt"
    assert told_by(data | {"tls.mode": "required"}).endswith(
        f"  try      COSMODROME_CA={certificate} cosmodrome status --endpoint https://127.0.0.1:9"
    )
    known = {"tls.mode": "required", "tls.certificate": "c.pem", "tls.key": "k.pem"}
    assert told_by(known).endswith("  try      cosmodrome status --endpoint https://127.0.0.1:9")


def told_by(overrides: dict[str, str], host: str = "127.0.0.1") -> str:
    config = load(environment={}, overrides=overrides)
    return "\n".join(greeting.lines(config, "grpcio", (host, 9), (host, 8)))
