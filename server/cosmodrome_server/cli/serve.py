"""`cosmodrome serve` and `cosmodrome config`: flags become settings, settings become a server.

argparse, not typer: it is imported in a millisecond, and a start is measured in hundreds.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path

import msgspec

from cosmodrome_server import config as settings
from cosmodrome_server.proxy import development_certificate

FLAGS = {
    "data": "server.data",
    "host": "server.host",
    "port": "server.port",
    "metrics_port": "server.metrics_port",
    "front": "server.front",
    "tls": "tls.mode",
    "durability": "store.durability",
    "log_level": "server.log_level",
}


def serve_from(arguments: list[str], *, show_only: bool = False) -> int:
    """Serve until a signal, or only print the settings; returns the exit code."""
    flags = _parser(show_only=show_only).parse_args(arguments)
    if not flags.temporary:
        return _serve(flags, show_only=show_only)
    import tempfile  # noqa: PLC0415 - 5 ms that only those who ask for it pay

    with tempfile.TemporaryDirectory(prefix="cosmodrome-") as flags.data:
        return _serve(flags, show_only=show_only)


def _serve(flags: argparse.Namespace, *, show_only: bool) -> int:
    def read() -> settings.Config:
        return settings.load(flags.config, overrides=_overrides(flags))

    try:
        chosen = read()
    except settings.ConfigError as error:
        sys.stderr.write(f"cosmodrome: {error}\n")
        return 2
    if show_only:
        sys.stdout.write(_as_toml(chosen))
        return 0
    own = chosen.tls.mode != "off" and not chosen.tls.certificate
    certificate = development_certificate.begin(chosen.data) if own else None
    from cosmodrome_server.app import serve  # noqa: PLC0415 - not needed to print settings
    from cosmodrome_server.proxy.fronts.event_loop import EventLoop  # noqa: PLC0415 - the same

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        return runner.run(serve(chosen, read_again=read, certificate=certificate))


def _parser(*, show_only: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cosmodrome config" if show_only else "cosmodrome serve",
        formatter_class=_formatter,
        description="Print every setting." if show_only else "Start a broker.",
        epilog="Later wins: the file, the environment (COSMODROME_AREA_KEY), flags.",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file with settings")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--data", metavar="DIR", help="data directory (server.data)")
    place.add_argument(
        "--temporary",
        action="store_true",
        help="keep data in a temporary directory, removed at the end: for tests",
    )
    parser.add_argument("--host", help="address to listen on (server.host)")
    parser.add_argument("--port", help="port for clients, 0 for any (server.port)")
    parser.add_argument("--metrics-port", metavar="PORT", help="port for /metrics, 0 for any")
    parser.add_argument("--front", help="gate, grpcio or auto (server.front)")
    parser.add_argument("--tls", help="auto, required or off (tls.mode)")
    parser.add_argument(
        "--durability", metavar="WHEN", help="sync, interval:N or os (store.durability)"
    )
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error")
    parser.add_argument(
        "--dev",
        action="store_true",
        help="create topics and groups on first use, switch reflection on",
    )
    parser.add_argument(
        "--strict", action="store_true", help="do without what Apache RocketMQ does not have"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="AREA.KEY=VALUE",
        help="any other setting; cosmodrome config lists them",
    )
    return parser


def _formatter(prog: str) -> argparse.HelpFormatter:
    # Told no width argparse asks shutil, also where no help is wanted: 3 ms of imports.
    try:
        columns = os.get_terminal_size().columns or 80
    except OSError:
        columns = 80
    return argparse.HelpFormatter(prog, width=columns - 2)


def _overrides(flags: argparse.Namespace) -> dict[str, str]:
    chosen = {path: getattr(flags, flag) for flag, path in FLAGS.items()}
    found = {path: str(value) for path, value in chosen.items() if value is not None}
    found |= {f"server.{name}": "true" for name in ("dev", "strict") if getattr(flags, name)}
    for item in flags.set:
        path, equals, value = item.partition("=")
        if not equals:
            raise settings.ConfigError(f"--set takes AREA.KEY=VALUE, not {item!r}")
        found[path] = value
    return found


def _as_toml(chosen: settings.Config) -> str:
    """Print settings as a file that `--config` takes; secrets masked."""
    from cosmodrome_server.cli.toml import literal  # noqa: PLC0415 - a start prints no settings

    lines = []
    for area, keys in msgspec.to_builtins(chosen).items():
        lines.append(f"[{area}]")
        for key, value in keys.items():
            shown = "***" if "secret" in key and value and not key.endswith("file") else value
            lines.append(f"# {key} is unset" if shown is None else f"{key} = {literal(shown)}")
        lines.append("")
    return "\n".join(lines)
