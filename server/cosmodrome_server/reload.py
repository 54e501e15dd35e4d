"""SIGHUP: the settings are read again, and what can change while calls come in does.

    file, environment, flags ──▶ load ──▶ [flow] to flow control, server.log_level to logging
                                     └──▶ the log names the others that changed: at the next start

Settings that do not fit change nothing. A server in a terminal is not reloaded but stopped: there
the signal says that the terminal is gone.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable

import msgspec

from cosmodrome_server.config import AREAS, Config, ConfigError
from cosmodrome_server.proxy.context import Context

_log = logging.getLogger(__name__)
_STDIN = 0


def remember_hangup(
    loop: asyncio.AbstractEventLoop, read_again: Callable[[], Config] | None
) -> asyncio.Event:
    """Have a SIGHUP that comes during the start wait for `on_hangup`, not end the process."""
    asked = asyncio.Event()
    if read_again is not None and not os.isatty(_STDIN):
        loop.add_signal_handler(signal.SIGHUP, asked.set)
    return asked


def on_hangup(
    loop: asyncio.AbstractEventLoop,
    context: Context,
    read_again: Callable[[], Config] | None,
    stop: asyncio.Event,
    asked: asyncio.Event,
) -> None:
    """Say what SIGHUP does from now on; nothing new where settings cannot be read again."""
    if os.isatty(_STDIN):
        loop.add_signal_handler(signal.SIGHUP, stop.set)
    elif read_again is not None:
        loop.add_signal_handler(signal.SIGHUP, take_up, context, read_again)
        if asked.is_set():
            take_up(context, read_again)


def take_up(context: Context, read_again: Callable[[], Config]) -> None:
    """Read the settings and change what can be changed now."""
    try:
        config = read_again()
    except ConfigError as error:
        _log.error("settings not taken up, the old ones stay: %s", error)
        return
    if context.flow is not None:
        context.flow.adopt(config.flow)
    logging.getLogger().setLevel(config.server.log_level.upper())
    later = [name for name in changed(context.config, config) if not _is_live(name)]
    _log.warning("settings taken up: flow, server.log_level")
    if later:
        _log.warning("settings that change at the next start only: %s", ", ".join(later))


def changed(old: Config, new: Config) -> list[str]:
    """The names of settings that differ."""
    return [
        f"{area}.{field.name}"
        for area, kind in AREAS.items()
        for field in msgspec.structs.fields(kind)
        if getattr(getattr(old, area), field.name) != getattr(getattr(new, area), field.name)
    ]


def _is_live(name: str) -> bool:
    return name.startswith("flow.") or name == "server.log_level"
