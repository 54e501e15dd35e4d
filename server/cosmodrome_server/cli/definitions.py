"""`cosmodrome definitions`: topics and groups as a file that is kept beside the code.

    cosmodrome definitions export > broker.toml
    cosmodrome definitions apply broker.toml --dry-run

`apply` makes what is missing and changes what is different. It deletes nothing, and leaves alone
what the file does not say, so that it may run at every deployment.
"""

import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_server.cli.connect import (
    CONTROL,
    DEFAULT_ENDPOINT,
    Endpoint,
    call,
    control,
    new_app,
    refuse,
)
from cosmodrome_server.cli.described import (
    GroupDescription,
    TopicDescription,
    changes,
    read_descriptions,
)
from cosmodrome_server.cli.toml import literal
from cosmodrome_server.cli.units import duration
from cosmodrome_server.model.group import DEFAULT_BACKOFF_MS
from cosmodrome_server.model.topic import DEAD_LETTER_PREFIX, LITE_PREFIX, RETRY_PREFIX

app = new_app("Keep topics and groups in a file: export, apply.")
# Topics that the broker makes for itself.
_OWN = (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    LITE_PREFIX,
    "rmq_sys_",
    "cosmodrome_delivery_events",
    "cosmodrome_lag_samples",
)
# What a new one has anyway, and a file need not say.
_USUAL: dict[str, object] = {
    "permission": "read_write",
    "fifo": False,
    "backoff": [duration(rest_ms) for rest_ms in DEFAULT_BACKOFF_MS],
    "consume_from": "auto",
    "paused": False,
    "priority_factor": 100,
}


@app.command()
def export(endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Print topics and groups as a file that apply takes."""
    tables = [_table("topic", each) for each in _topics(endpoint).values()]
    tables += [_table("group", each) for each in _groups(endpoint).values()]
    typer.echo("\n".join(tables), nl=False)


@app.command()
def apply(
    file: Annotated[str, typer.Argument(help="A TOML file; - reads standard input")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change")] = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Make the topics and groups of a file, and change those that differ; deletes nothing."""
    wanted = read_descriptions(_text_of(file), file)
    topics, groups = _topics(endpoint), _groups(endpoint)
    # All is read before anything is made; topics first, since a lite group is bound to one.
    steps = [_topic_step(each, topics.get(each.name)) for each in wanted.topic]
    steps += [_group_step(each, groups.get(each.name)) for each in wanted.group]
    todo = [step for step in steps if step.words]
    for done, step in enumerate(todo):
        for words in step.words:
            typer.echo(words)
        if dry_run:
            continue
        try:
            call(endpoint, CONTROL, step.rpc, step.request)
        except SystemExit:
            typer.echo(f"{done} of {len(todo)} changed before that", err=True)
            raise
    same = len(steps) - len(todo)
    typer.echo(f"{len(todo)} {'to change' if dry_run else 'changed'}, {same} as they are")


class _Step(NamedTuple):
    """What makes or changes one, and what is said of it; nothing where it is so already."""

    words: list[str]
    rpc: str
    request: wire.CreateTopicRequest | wire.CreateGroupRequest


def _topic_step(wanted: TopicDescription, known: TopicDescription | None) -> _Step:
    request = wire.CreateTopicRequest(topic=wanted.to_wire())
    if known is None:
        return _Step([f"topic {wanted.name}: new"], "CreateTopic", request)
    if wanted.type and wanted.type.lower() != known.type:
        refuse(f"topic {wanted.name} is {known.type}, and stays so: it cannot be {wanted.type}")
    if 0 < wanted.queues < known.queues:
        refuse(f"topic {wanted.name} has {known.queues} queues, which cannot become fewer")
    said = [f"topic {wanted.name}: {change}" for change in changes(wanted, known)]
    return _Step(said, "CreateTopic", request)


def _group_step(wanted: GroupDescription, known: GroupDescription | None) -> _Step:
    request = wire.CreateGroupRequest(group=wanted.to_wire())
    if known is None:
        return _Step([f"group {wanted.name}: new"], "CreateGroup", request)
    said = [f"group {wanted.name}: {change}" for change in changes(wanted, known)]
    return _Step(said, "CreateGroup", request)


def _text_of(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {file}: {error}") from error


def _topics(endpoint: str) -> dict[str, TopicDescription]:
    answer = control(endpoint, "ListTopics", wire.ListTopicsRequest(), wire.ListTopicsResponse)
    found = (each.topic for each in answer.topics if not each.topic.name.startswith(_OWN))
    return {topic.name: TopicDescription.of(topic) for topic in found}


def _groups(endpoint: str) -> dict[str, GroupDescription]:
    answer = control(endpoint, "ListGroups", wire.ListGroupsRequest(), wire.ListGroupsResponse)
    return {each.group.name: GroupDescription.of(each.group) for each in answer.groups}


def _table(kind: str, described: TopicDescription | GroupDescription) -> str:
    said = msgspec.to_builtins(described)
    said = {"name": said.pop("name"), **said}
    lines = [f"{key} = {literal(value)}\n" for key, value in said.items() if _says(key, value)]
    return f"[[{kind}]]\n{''.join(lines)}"


def _says(key: str, value: object) -> bool:
    return value is not None and value != _USUAL.get(key)
