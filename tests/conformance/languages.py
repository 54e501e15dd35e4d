"""The official clients: where each comes from, what it needs, what it can do.

A feature that a client lacks is not a failure of the server: its cells of docs/conformance.md say
"not in this client". Features were read in the released sources and confirmed by the drivers,
which refuse what they cannot do.
"""

from dataclasses import dataclass

# What a client may have. Sending, simple receive and ack are in all of them.
PUSH = "push consumer"
CHANGE_INVISIBLE = "change invisible duration"
RECALL = "recall"
PRIORITY = "priority"
LITE = "lite topics"
LITE_SIMPLE = "lite simple consumer"
LITE_OFFSET = "lite offset option"
ASYNC_SEND = "asynchronous send"
MILLISECONDS = "durations below a second"
TLS = "TLS"
TLS_SWITCH = "TLS on and off"
MAX_ATTEMPTS = "send attempts setting"

ALL = frozenset(
    {PUSH, CHANGE_INVISIBLE, RECALL, PRIORITY, LITE, ASYNC_SEND, MILLISECONDS, TLS, TLS_SWITCH}
)


@dataclass(frozen=True)
class Language:
    """One official client.

    `tools` are the programs its driver is built and run with; `is_required` says that the suite
    fails without them, where others skip. `has_tls_by_default` is what the client does when told
    nothing.
    """

    name: str
    title: str
    package: str
    tools: tuple[str, ...]
    features: frozenset[str]
    has_tls_by_default: bool
    is_required: bool = False
    verifies_tls: bool = True

    def has(self, feature: str) -> bool:
        return feature in self.features


PYTHON = Language(
    name="python",
    title="Python",
    package="rocketmq-python-client",
    tools=(),
    features=(ALL | {LITE_SIMPLE}) - {MILLISECONDS},
    has_tls_by_default=False,
    is_required=True,
)
NODE = Language(
    name="node",
    title="Node",
    package="rocketmq-client-nodejs",
    tools=("node", "npm"),
    features=(ALL | {LITE_OFFSET, MAX_ATTEMPTS}) - {ASYNC_SEND},
    has_tls_by_default=False,
    is_required=True,
)
JAVA = Language(
    name="java",
    title="Java",
    package="org.apache.rocketmq:rocketmq-client-java",
    tools=("java", "javac", "mvn"),
    features=ALL | {LITE_OFFSET, MAX_ATTEMPTS},
    has_tls_by_default=True,
    verifies_tls=False,
)
GO = Language(
    name="go",
    title="Go",
    package="github.com/apache/rocketmq-clients/golang/v5",
    tools=("go",),
    features=ALL | {MAX_ATTEMPTS},
    has_tls_by_default=True,
    verifies_tls=False,
)
RUST = Language(
    name="rust",
    title="Rust",
    package="rocketmq",
    tools=("cargo",),
    features=frozenset({MILLISECONDS}),
    has_tls_by_default=False,
)

SDK = Language(
    name="sdk",
    title="Cosmodrome",
    package="cosmodrome (this repository)",
    tools=(),
    features=ALL | {LITE_SIMPLE, LITE_OFFSET, MAX_ATTEMPTS},
    has_tls_by_default=False,
    is_required=True,
)

OFFICIAL = (PYTHON, NODE, JAVA, GO, RUST)
LANGUAGES = (*OFFICIAL, SDK)

# Clients that exist and are not here, with the reason that docs/conformance.md gives.
ABSENT = {
    "C#": "RocketMQ.Client is on NuGet and needs the .NET SDK; neither is on the build machines",
    "C++": "published as source only, in no package registry",
    "PHP": "announced upstream, not released",
}
