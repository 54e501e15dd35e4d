"""Every setting of the server, by area: one typed schema, validated once.

Sources, later ones win: the defaults here, a TOML file, the environment, flags.

    file          [store]
                  durability = "os"
    environment   COSMODROME_STORE_DURABILITY=os
    flag          --set store.durability=os

A key that is not here is refused, with the nearest one suggested. Units stand in the
names: `_ms`, `_s`, `_bytes`, `_mib`. Lists in the environment and in flags are written
with commas.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

ENVIRONMENT_PREFIX = "COSMODROME_"

Port = Annotated[int, Meta(ge=0, le=65535)]
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Durability = Annotated[str, Meta(pattern=r"^(sync|os|interval:[1-9][0-9]{0,4})$")]


class ConfigError(Exception):
    """A setting that does not exist or does not fit; the message says which and why."""


class _Area(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A group of settings."""


class Server(_Area, frozen=True):
    """Where the broker listens and what it is called.

    `advertised` is the endpoint given to clients that name none; empty echoes the
    address each client used, which works behind NAT and in containers. `front` is
    what speaks HTTP/2; `auto` takes the gate where it is installed. `strict` does without
    what the reference's servers do not have, for testing clients: see docs/wire.md.
    `busy_poll_us` is how long the gate and the loop stay awake between the words of a caller
    who is alone and sends its next call at once; 0 is never.
    """

    host: str = "127.0.0.1"
    port: Port = 8081
    metrics_host: str = ""
    metrics_port: Port = 5557
    data: Annotated[str, Meta(min_length=1)] = "cosmodrome-data"
    name: str = "cosmodrome"
    cluster: str = "DefaultCluster"
    advertised: str = ""
    front: Literal["auto", "gate", "grpcio"] = "auto"
    dev: bool = False
    strict: bool = False
    reflection: bool | None = None
    drain_s: Annotated[int, Meta(ge=0, le=600)] = 10
    busy_poll_us: Annotated[int, Meta(ge=0, le=1_000_000)] = 500
    unix_socket: str = ""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"


class Store(_Area, frozen=True):
    """The log on disk.

    `durability`: sync = on disk before the answer; interval:N = at most N ms later; os =
    when the kernel likes. docs/operating.md says what each can lose. `read_around_bad_sectors`:
    start although the disk refuses some of the log, and give up what is there.
    """

    durability: Durability = "sync"
    segment_mib: Annotated[int, Meta(ge=1, le=2048)] = 128
    retention_hours: NotNegative = 72
    retention_mib: NotNegative = 0
    reserve_mib: NotNegative = 16
    staged_mib: Positive = 64
    checkpoint_mib: Positive = 64
    checkpoint_s: Positive = 30
    scrub_mib_s: NotNegative = 10
    read_around_bad_sectors: bool = False


class Topics(_Area, frozen=True):
    """Creation of topics and groups. `auto_create` unset means: on under --dev only."""

    auto_create: bool | None = None
    queues: Annotated[int, Meta(ge=1, le=1024)] = 8
    topics_max: Positive = 100_000
    groups_max: Positive = 100_000


class Limits(_Area, frozen=True):
    """What a request may hold (protocol limits of the reference)."""

    body_bytes: Positive = 4_194_304
    user_properties: Positive = 128
    properties_bytes: Positive = 16_384
    stored_properties_bytes: Positive = 65_536
    topic_chars: Positive = 127
    group_chars: Positive = 120
    message_group_bytes: Positive = 63
    lite_topic_bytes: Positive = 64
    delay_s: Positive = 40 * 86_400
    strict_delay_s: Positive = 86_400
    transaction_recovery_s: Positive = 3_600
    batch_messages: Positive = 1_024
    request_mib: Positive = 130
    metadata_bytes: Positive = 65_536
    streams_per_connection: Positive = 4_096
    connections: Positive = 50_000
    handshake_s: Positive = 10


class Delivery(_Area, frozen=True):
    """Receiving: batch, polling and invisibility.

    `push_receives` is how many receives the push consumers of other clients keep under way for each
    topic of a group that is not ordered.
    """

    batch_max: Annotated[int, Meta(ge=1, le=1024)] = 32
    push_receives: Annotated[int, Meta(ge=1, le=16)] = 2
    pull_max: Annotated[int, Meta(ge=1, le=16_384)] = 1_024
    invisible_min_ms: Positive = 10_000
    invisible_max_ms: Positive = 43_200_000
    renew_ms: Positive = 60_000
    renew_total_ms: Positive = 10_800_000
    polling_min_ms: Positive = 5_000
    polling_max_ms: Positive = 20_000
    waiters_max: Positive = 100_000
    waiters_per_group: Positive = 10_000
    inflight_per_group: Positive = 1_000_000
    registration_s: Positive = 120


class Transactions(_Area, frozen=True):
    """Half messages and when their producers are asked about them."""

    first_check_ms: Positive = 6_000
    check_interval_ms: Positive = 30_000
    checks_max: Positive = 15
    expire_hours: Positive = 72
    open_max: Positive = 1_000_000


class Delays(_Area, frozen=True):
    """Delayed messages."""

    pending_max: Positive = 10_000_000
    recall: bool = True


class Lite(_Area, frozen=True):
    """Lite topics (protocol.md 7.13)."""

    topics_max: Positive = 20_000
    subscriptions_per_client: Positive = 2_000
    subscriptions_max: Positive = 100_000


class Tls(_Area, frozen=True):
    """One port for both: `auto` looks at the first byte of a connection.

    Without `certificate` a development certificate is made in the data directory.
    """

    mode: Literal["auto", "required", "off"] = "auto"
    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    client_certificate: Literal["none", "optional", "required"] = "none"
    reload_s: Positive = 60


class Security(_Area, frozen=True):
    """Who may do what (protocol.md 2). `users` and `policies` name TOML files read at start."""

    authentication: bool = False
    authorization: bool = False
    admin_user: str = ""
    admin_secret: str = ""
    users: str = ""
    policies: str = ""
    secret_key_file: str = ""
    date_window_s: NotNegative = 0
    failures_per_s: Positive = 10
    open_requests: list[str] = []


class Flow(_Area, frozen=True):
    """Admission: calls under way per class, and token buckets (0 = no limit).

    `topics` and `groups` are the rates of single ones. Sends count messages, receives calls.
    """

    calls_per_class: Positive = 10_000
    topic_sends_per_s: NotNegative = 0
    group_receives_per_s: NotNegative = 0
    client_calls_per_s: NotNegative = 0
    topics: dict[str, NotNegative] = {}
    groups: dict[str, NotNegative] = {}


class Metrics(_Area, frozen=True):
    """What /metrics shows. `collector` asks clients for their metrics over OTLP."""

    enabled: bool = True
    series_max: Positive = 50_000
    labels: dict[str, str] = {}
    collector: Literal["off", "proxy", "on"] = "off"
    collector_endpoint: str = ""


class Events(_Area, frozen=True):
    """Delivery events and lag samples kept as system topics, for the pipeline."""

    deliveries: bool = False
    lag_s: NotNegative = 0


class Bulk(_Area, frozen=True):
    """What the data pipeline may take of this server; 0 mib_per_s is no bound."""

    mib_per_s: NotNegative = 0


class Config(_Area, frozen=True):
    """All settings. `Config()` is what an empty file gives."""

    server: Server = Server()
    store: Store = Store()
    topics: Topics = Topics()
    limits: Limits = Limits()
    delivery: Delivery = Delivery()
    transactions: Transactions = Transactions()
    delays: Delays = Delays()
    lite: Lite = Lite()
    tls: Tls = Tls()
    security: Security = Security()
    flow: Flow = Flow()
    metrics: Metrics = Metrics()
    events: Events = Events()
    bulk: Bulk = Bulk()

    @property
    def auto_create(self) -> bool:
        """Whether topics and groups are created on first use."""
        chosen = self.topics.auto_create
        return self.server.dev if chosen is None else chosen

    @property
    def data(self) -> Path:
        """The data directory."""
        return Path(self.server.data)


AREAS: dict[str, type[_Area]] = {field.name: field.type for field in msgspec.structs.fields(Config)}


def load(
    file: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Config:
    """Read the settings.

    Args:
        file: A TOML file; None for none.
        environment: `os.environ` unless given.
        overrides: `area.key` → value as text, from flags.

    Raises:
        ConfigError: A key that does not exist, a value that does not fit, or a file that
            cannot be read; says which and where it came from.
    """
    merged: dict[str, dict[str, Any]] = {}
    if file is not None:
        _merge(merged, _read(file), source=str(file))
    for name, text in sorted((os.environ if environment is None else environment).items()):
        if name.startswith(ENVIRONMENT_PREFIX) and (path := _path_of(name)) is not None:
            _merge(merged, _nested(*path, text), source=f"environment variable {name}")
    for dotted, text in (overrides or {}).items():
        area, _, key = dotted.partition(".")
        _merge(merged, _nested(area, key, text), source="settings")
    return _convert(merged)


def _read(file: Path) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - 5 ms that only those who have a file pay

    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error


def _path_of(variable: str) -> tuple[str, str] | None:
    """Split COSMODROME_STORE_SEGMENT_MIB into ("store", "segment_mib").

    Variables of the SDK share the prefix (COSMODROME_ENDPOINT, …): a name whose first word is
    no area is not ours. COSMODROME_DATA, _HOST and _PORT are short for those of the server.
    """
    rest = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
    if rest in {"data", "host", "port", "metrics_port", "dev"}:
        return "server", rest
    area, _, key = rest.partition("_")
    return (area, key) if area in AREAS and key else None


def _nested(area: str, key: str, text: str) -> dict[str, Any]:
    return {area: {key: _from_text(area, key, text)}}


def _from_text(area: str, key: str, text: str) -> object:
    """Lists are written `a,b`, tables `a=1,b=2`; the schema converts the rest."""
    if area not in AREAS:
        return text
    declared = {f.name: f.type for f in msgspec.structs.fields(AREAS[area])}.get(key)
    items = [item.strip() for item in text.split(",") if item.strip()]
    if declared == list[str]:
        return items
    if get_origin(declared) is dict:
        for item in items:
            if "=" not in item:
                raise ConfigError(f"{area}.{key} is written name=value,name=value, not {item!r}")
        return dict(item.split("=", 1) for item in items)
    return text


def _merge(into: dict[str, dict[str, Any]], settings: Mapping[str, Any], *, source: str) -> None:
    for area, keys in settings.items():
        if area not in AREAS:
            raise ConfigError(f"{source}: no area [{area}]{_nearest(area, AREAS)}")
        if not isinstance(keys, Mapping):
            raise ConfigError(f"{source}: [{area}] is a table of settings, not {keys!r}")
        known = {f.name for f in msgspec.structs.fields(AREAS[area])}
        for key, value in keys.items():
            if key not in known:
                raise ConfigError(f"{source}: no setting {area}.{key}{_nearest(key, known)}")
            into.setdefault(area, {})[key] = value
    # Convert at once, so that an error names the source it came from.
    try:
        _convert({area: {k: into[area][k] for k in keys} for area, keys in settings.items()})
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def _nearest(name: str, known: Mapping[str, object] | set[str]) -> str:
    import difflib  # noqa: PLC0415 - for those who mistype

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(known))}"


def _convert(settings: Mapping[str, Any]) -> Config:
    try:
        return msgspec.convert(settings, Config, strict=False)
    except msgspec.ValidationError as error:
        words, _, path = str(error).partition(" - at `$.")
        area, _, key = path.rstrip("`").partition(".")
        if choices := _choices(area, key):
            words = f"it is one of {choices}"
        raise ConfigError(f"{area}.{key}: {words}" if key else words) from error


def _choices(area: str, key: str) -> str:
    """What a setting may be, where that is a list of words; "" for all others."""
    declared = next((f.type for f in msgspec.structs.fields(AREAS[area]) if f.name == key), None)
    if declared is Durability:
        return "sync, os, interval:MILLISECONDS (up to 99999)"
    return ", ".join(map(str, get_args(declared))) if get_origin(declared) is Literal else ""
