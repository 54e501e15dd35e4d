"""What is said at start: where it listens, where the data lies, what is open, how to begin."""

from cosmodrome_server.config import Config
from cosmodrome_server.proxy.development_certificate import files_in

Address = tuple[str, int]


def lines(config: Config, front: str, clients: Address, metrics: Address | None) -> list[str]:
    """The lines of a start; the first begins with `ready`, and programs wait for it.

    Args:
        config: All settings.
        front: The name of the one that serves.
        clients: Where it listens for them.
        metrics: Where /metrics is, if it is served.
    """
    topics, attempt = "created on first use", "message send hello world"
    if not config.auto_create:
        topics, attempt = "cosmodrome topic create NAME, or definitions apply FILE", "status"
    found = [
        f"ready: RocketMQ 5 clients at {joined(*clients)} (front {front}, tls {config.tls.mode})",
        f"  data     {config.data.resolve()}, durability {config.store.durability}",
        f"  access   {_access(config)}",
        f"  topics   {topics}",
    ]
    if metrics is not None:
        found.append(f"  metrics  http://{joined(*metrics)}/metrics")
    if front == "grpcio" and config.server.front == "auto":
        found.append("  note     the native gate cannot be imported; calls are slower without it")
    host, port = clients
    where = joined(reachable(host), port)
    if config.tls.mode == "required":
        where = f"https://{where}"
    return [*found, f"  try      {_trust(config)}cosmodrome {attempt} --endpoint {where}"]


def reachable(host: str) -> str:
    """An address of this machine that reaches a listener on `host`."""
    return "127.0.0.1" if host in ("", "0.0.0.0", "::") else host


def joined(host: str, port: int) -> str:
    """`host:port`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _trust(config: Config) -> str:
    """What commands need beside the address, where they must trust a certificate of our own."""
    if config.tls.mode != "required" or config.tls.certificate:
        return ""
    certificate, _ = files_in(config.data.resolve())
    return f"COSMODROME_CA={certificate} "


def _access(config: Config) -> str:
    security = config.security
    if not security.authentication:
        return "open to everybody who can connect (security.authentication is off)"
    if security.authorization:
        return "signed requests only; rules say who may do what"
    return "signed requests only; every user may do everything"
