"""The commands: `serve` starts a broker, the rest speaks to a running one or to its files.

    cosmodrome serve [--dev] [--data DIR | --temporary] [--port 8081] [--set area.key=value]
    cosmodrome topic|group|offset|dlq|scheduled|transaction|message …   over the wire
    cosmodrome definitions|client|status|user|acl …                     over the wire
    cosmodrome store check|dump|rebuild                                 on a stopped broker
    cosmodrome config|version

Every command that speaks to a broker takes --endpoint (or COSMODROME_ENDPOINT). Commands are
imported when they are called: `serve` is to be ready within 300 ms of its start.
"""

import gc
import importlib
import io
import os
import sys
from importlib.util import find_spec
from typing import NoReturn

from cosmodrome_server import __version__
from cosmodrome_server.later import missing, put_off

# First word → module with a typer `app`; of `pipeline` another distribution part.
GROUPS = {
    "topic": "cosmodrome_server.cli.topic",
    "group": "cosmodrome_server.cli.group",
    "offset": "cosmodrome_server.cli.offset",
    "dlq": "cosmodrome_server.cli.dead_letters",
    "scheduled": "cosmodrome_server.cli.waiting",
    "transaction": "cosmodrome_server.cli.transaction",
    "message": "cosmodrome_server.cli.message",
    "definitions": "cosmodrome_server.cli.definitions",
    "client": "cosmodrome_server.cli.client",
    "status": "cosmodrome_server.cli.status",
    "user": "cosmodrome_server.cli.user",
    "acl": "cosmodrome_server.cli.acl",
    "store": "cosmodrome_server.cli.store",
    "pipeline": "cosmodrome_spark.cli",
}
# What libraries import and a broker uses seldom or never: a fifth of a start.
SELDOM_USED = frozenset(
    {
        "ssl",  # asyncio; TLS is the gate's, or grpcio's
        "asyncio.sslproto",
        "google.protobuf.descriptor_database",  # protobuf in Python; the native one serves
        "google.protobuf.internal.python_message",
        "google.protobuf.text_encoding",
        "hashlib",  # who signs requests; see model/digests.py
        "hmac",
        "ipaddress",  # urllib.parse, which is imported by pathlib
        "json",  # topics and groups that were created
        "msgspec.inspect",
        "msgspec.toml",
        "msgspec.yaml",
        "cosmodrome_server.core.filter_expression_sql",  # the first SQL filter
        "cosmodrome_server.proxy.activities.admin",  # operators
        "cosmodrome_server.proxy.activities.control",
        "cosmodrome_server.proxy.bulk.table",  # the pipeline
        "cosmodrome_server.proxy.security.needs",  # where security.authentication is on
        "sqlite3",  # the second start, and checkpoints
    }
)
SELDOM_USED_BY_COMMANDS = frozenset(
    {
        "asyncio",  # grpc, for what follows
        "grpc.aio",
        "grpc",  # those that say how they are used, and those on files
    }
)
NEEDS = {"pipeline": "cosmodrome[spark]"}

USAGE = f"""usage: cosmodrome COMMAND …

  serve        start a broker (--dev creates topics and groups on first use)
  topic        create, list, show, delete topics
  group        create, list, show, delete consumer groups
  offset       move a group on a topic
  dlq          list, show and redrive dead letters
  scheduled    list and recall delayed messages
  transaction  list and end half messages
  message      send, receive, watch, find and show messages
  definitions  topics and groups as a file: export, apply
  client       who is connected, and what it is doing
  status       the broker at a glance; exit code 1 where bounds are passed
  user, acl    who may do what
  store        check, dump, rebuild the files of a stopped broker
  pipeline     Spark jobs over topics
  config       print every setting with its value
  version      print the version ({__version__})

cosmodrome COMMAND --help says more."""


def run(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    words = sys.argv[1:] if arguments is None else arguments
    command, rest = (words[0], words[1:]) if words else ("--help", [])
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not of UTF-8 gets what it cannot show as `\u2026`.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if command in {"-h", "--help", "help"}:
        sys.stdout.write(USAGE + "\n")
    elif command in {"version", "--version"}:
        sys.stdout.write(f"cosmodrome {__version__}\n")
    elif command in {"serve", "config"}:
        sys.exit(_serve(rest, show_only=command == "config"))
    elif command in GROUPS:
        _run_group(command, rest)
    else:
        sys.stderr.write(f"cosmodrome has no command {command}\n\n{USAGE}\n")
        sys.exit(2)


def _serve(rest: list[str], *, show_only: bool) -> int:
    # A Python may have been built without TLS; asyncio then does without it, if it may notice.
    put_off(SELDOM_USED if find_spec("_ssl") else SELDOM_USED - {"ssl", "asyncio.sslproto"})
    with missing("typing_extensions"):  # msgspec, for what Python 3.11 has itself
        importlib.import_module("msgspec")
    from cosmodrome_server.cli.serve import serve_from  # noqa: PLC0415 - the above comes first

    return serve_from(rest, show_only=show_only)


def _run_group(command: str, rest: list[str]) -> None:
    if command != "pipeline":  # Spark's are not known
        put_off(SELDOM_USED | SELDOM_USED_BY_COMMANDS)
    # gRPC reads this when it is loaded; its own lines would stand before what we say of an error.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        app = importlib.import_module(GROUPS[command]).app
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("cosmodrome_server"):
            raise
        wanted = NEEDS.get(command, "cosmodrome[server]")
        sys.exit(f"cosmodrome {command} needs {error.name}: pip install '{wanted}'")
    gc.enable()
    try:
        app(args=rest, prog_name=f"cosmodrome {command}")
    except UnicodeEncodeError as error:  # Python carries bytes that are no text as surrogates
        _end(2, f"{os.fsencode(str(error.object))!r} is not UTF-8")
    except OSError as error:  # standard output, on a disk that is full
        _end(1, f"cannot write: {error.strerror}")


def _end(code: int, words: str) -> NoReturn:
    sys.stderr.write(f"cosmodrome: {words}\n")
    sys.exit(code)
