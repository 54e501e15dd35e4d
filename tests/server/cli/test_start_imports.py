"""What a start must not import: a broker is ready sooner without what few of them ever use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cosmodrome_server.cli.root import GROUPS, NEEDS
from tests.support.fronts import FRONTS

NOT_AT_START = {
    "_hashlib": "OpenSSL's hashes; Python's own will do: model/digests.py",
    "_ssl": "the gate speaks TLS",
    "cosmodrome": "the SDK is for clients",
    "cosmodrome_proto.admin_pb2": "operators need it",
    "cosmodrome_proto.bulk_pb2": "the pipeline needs it",
    "cosmodrome_proto.control_pb2": "operators need it",
    "cosmodrome_server.columnar": "bulk reads need it",
    "cosmodrome_server.core.filter_expression_values": "the first SQL filter needs it",
    "cryptography": "the gate makes a first start's certificate",
    "dataclasses": "values are structs",
    "difflib": "only who mistypes a setting needs it",
    "google.protobuf.descriptor_pb2": "one pool of descriptors is read without it",
    "google.protobuf.internal.decoder": "protobuf's twin in Python; the native one serves",
    "grpc": "the gate speaks gRPC",
    "grpc_reflection": "the gate speaks gRPC",
    "http.server": "the first scrape needs it",
    "importlib.metadata": "nothing asks for versions of packages",
    "json.decoder": "topics and groups need it",
    "lark": "the first SQL filter needs it",
    "prometheus_client": "the first scrape needs it",
    "pyarrow": "bulk reads need it",
    "shutil": "argparse asks it for a width that nobody sees",
    "tempfile": "only --temporary needs it",
}
NOT_AT_THE_FIRST = {"_sqlite3": "there is no checkpoint to read"}
# Of others' packages these are needed, and each costs every start.
OF_OTHERS = {"google", "google_crc32c", "msgspec", "xxhash"}
# Of the interpreter and its environment: hooks of packages that are installed beside, and modules
# that the standard library looks for on other systems.
OF_THE_ENVIRONMENT = {"coverage", "org", "sitecustomize", "usercustomize"}
# Looked for and kept from being found, which is in the report, too.
KEPT_OUT = {"typing_extensions"}

# TLS in asyncio once what `serve` puts off is put off; then the SDK in the same process.
PUT_OFF_AND_USED = """
import sys
from pathlib import Path
from cosmodrome_server.cli.root import SELDOM_USED
from cosmodrome_server.later import put_off

put_off(SELDOM_USED)
import asyncio
assert "_ssl" not in sys.modules
from cosmodrome_server.proxy.development_certificate import development_certificate

async def main():
    import ssl
    chain, key = development_certificate(Path(sys.argv[1]))
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(chain, key)

    async def echo(reader, writer):
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=served)
    trusted = ssl.create_default_context(cafile=chain)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
    writer.write(b"over TLS\\n")
    assert await reader.readline() == b"over TLS\\n"
    writer.close()
    assert asyncio.sslproto.SSLProtocol and asyncio.base_events.ssl is ssl

asyncio.run(main())
import hashlib, hmac, json, sqlite3, cosmodrome
assert hmac.new(b"k", b"m", hashlib.sha1).hexdigest() and json.loads("[1]") == [1]
assert sqlite3.connect(":memory:").execute("SELECT 1").fetchone() == (1,)
print("fine", cosmodrome.Producer.__name__)
"""


def imported(report: str) -> set[str]:
    """The modules in a report of `-X importtime`."""
    lines = (line for line in report.splitlines() if line.startswith("import time:"))
    return {line.rpartition("|")[2].strip() for line in lines} - {"imported package"}


def until_ready(tmp_path: Path) -> set[str]:
    """The modules a start imports before it says that it is ready."""
    report = tmp_path / "imports"
    command = [sys.executable, "-m", "cosmodrome_server", "serve", "--front", "gate"]
    flags = ["--data", str(tmp_path / "data"), "--port", "0", "--metrics-port", "0"]
    with (
        report.open("w") as stderr,
        subprocess.Popen(
            [*command, *flags],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
        ) as broker,
    ):
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("ready")
        modules = imported(report.read_text())
        broker.terminate()
    return modules


def test_a_start_with_the_gate_imports_nothing_that_only_some_brokers_need(tmp_path: Path) -> None:
    pytest.importorskip("cosmodrome_gate")
    first, later = until_ready(tmp_path), until_ready(tmp_path)
    assert "cosmodrome_server.app" in first
    assert sorted((NOT_AT_START | NOT_AT_THE_FIRST).keys() & first) == []
    assert sorted(NOT_AT_START.keys() & later) == []
    packages = {module.partition(".")[0] for module in later}
    foreign = {
        name
        for name in packages - sys.stdlib_module_names - OF_THE_ENVIRONMENT - KEPT_OUT
        if not name.startswith(("_", "cosmodrome"))
    }
    assert foreign == OF_OTHERS


def test_msgspec_is_imported_without_what_python_has_itself() -> None:
    code = (
        "import sys\nfrom cosmodrome_server.cli.root import run\n"
        "try:\n    run(['config'])\nexcept SystemExit:\n"
        "    print('msgspec' in sys.modules, 'typing_extensions' in sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "True False\n"


@pytest.mark.parametrize("arguments", [["--help"], ["version"]])
def test_what_is_only_said_is_said_without_the_broker_and_without_grpc(
    tmp_path: Path, arguments: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "cosmodrome_server", *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert sorted(imported(done.stderr) & {"asyncio", "grpc", "msgspec", "google", "typer"}) == []


@pytest.mark.parametrize("group", sorted(GROUPS.keys() - NEEDS.keys()))
def test_a_command_says_how_it_is_used_without_what_speaks_to_brokers(group: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "cosmodrome_server", group, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    unneeded = {"_ssl", "asyncio.base_events", "grpc._cython.cygrpc"}
    assert sorted(imported(done.stderr) & unneeded) == []


def test_what_a_start_puts_off_works_when_it_is_used(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PUT_OFF_AND_USED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("fine Producer\n", "")


@pytest.mark.parametrize("front", FRONTS)
def test_each_front_speaks_tls_as_it_is_started_by_the_command(front: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cosmodrome_server"]
    flags = ["--data", str(tmp_path), "--port", "0", "--metrics-port", "0", "--tls", "required"]
    with subprocess.Popen(
        [*command, "serve", "--front", front, *flags], stdout=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stdout is not None
        endpoint = broker.stdout.readline().split()[5]
        try:
            done = subprocess.run(
                [*command, "topic", "create", "safe", "--endpoint", f"https://{endpoint}"],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "COSMODROME_CA": str(tmp_path / "tls" / "development.crt")},
            )
        finally:
            broker.terminate()
    assert (done.stdout, done.stderr) == ("topic safe: normal, 8 queues\n", "")
