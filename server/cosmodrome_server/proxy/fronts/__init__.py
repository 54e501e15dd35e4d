"""What carries calls: HTTP/2 and TLS, by the native gate or by grpcio."""

from importlib.util import find_spec
from typing import Literal

from cosmodrome_server.config import Config, ConfigError


def chosen(config: Config) -> Literal["gate", "grpcio"]:
    """The front of the settings; `auto` takes the gate where it is installed.

    Raises:
        ConfigError: The gate is asked for and not installed.
    """
    has_gate = find_spec("cosmodrome_gate") is not None
    wanted = config.server.front
    if wanted == "gate" and not has_gate:
        raise ConfigError("server.front is gate, but cosmodrome_gate is not installed: make gate")
    return "gate" if has_gate and wanted != "grpcio" else "grpcio"
