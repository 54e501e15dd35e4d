"""What carries calls: HTTP/2 and TLS, by the native gate or by grpcio."""

from typing import Literal

from cosmodrome_server.config import Config, ConfigError


def chosen(config: Config) -> Literal["gate", "grpcio"]:
    """The front of the settings; `auto` takes the gate where it can be imported.

    Raises:
        ConfigError: The gate is asked for and cannot be imported.
    """
    wanted = config.server.front
    if wanted == "grpcio":
        return "grpcio"
    try:
        # What older ones do not have; neither of them may be there.
        from cosmodrome_gate import check_certificate, self_signed  # noqa: F401, PLC0415 - see
    except ImportError as error:  # not installed, old, or built for another Python or machine
        if wanted == "gate":
            raise ConfigError(
                f"server.front is gate, but it cannot be imported ({error}): make gate"
            ) from error
        return "grpcio"
    return "gate"
