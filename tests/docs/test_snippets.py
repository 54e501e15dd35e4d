"""Every snippet and link of README.md and docs/ works: readers copy them as they are."""

import ast
import asyncio
import inspect
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import cosmodrome
from cosmodrome.testing import TestBroker
from cosmodrome_server.cli.root import GROUPS, run
from cosmodrome_server.cli.serve import serve_from

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
]
ADDRESS = "127.0.0.1:8081"
RUN_S_MAX = 60


@dataclass(frozen=True)
class Snippet:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def snippets(language: str) -> list[Snippet]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in re.finditer(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, block.start()) + 2
            found.append(Snippet(page, line, block[1], block[2]))
    return [snippet for snippet in found if snippet.language == language]


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as broker:
        broker.create_topic("sessions", "LITE")
        broker.create_group("chat", lite_bind_topic="sessions")
        broker.create_group("billing")
        yield broker


def names_of(broker: TestBroker) -> dict[str, Any]:
    """What the pages take as given: the package's names, an address, clients and functions."""

    def listener(_: object) -> cosmodrome.ConsumeResult:
        return cosmodrome.ConsumeResult.SUCCESS

    return {
        **{name: getattr(cosmodrome, name) for name in cosmodrome.__all__},
        "cosmodrome": cosmodrome,
        "address": broker.endpoint,
        "broker": broker,
        "Sequence": Sequence,
        "timedelta": timedelta,
        "show": listener,
        "work": listener,
        "is_paid": bool,
        "producer": cosmodrome.Producer(broker.endpoint),
        "consumer": cosmodrome.SimpleConsumer(broker.endpoint, group="g"),
        "cosmodrome_broker": broker,
        "cosmodrome_names": "{}-1".format,
    }


def compiled(snippet: Snippet, address: str) -> CodeType:
    text = snippet.code.replace(ADDRESS, address)
    # Numbered as in the page, so that a traceback points into it.
    tree = compile(
        "\n" * (snippet.line - 1) + text,
        str(snippet.page),
        "exec",
        ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
    )
    code: CodeType = compile(tree, str(snippet.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code


async def until_it_ends_or_acknowledges(running: asyncio.Future[Any], calls: list[str]) -> None:
    """A consumer's snippet may go on for ever: one message consumed shows that it works."""
    async with asyncio.timeout(RUN_S_MAX):
        while not running.done() and "AckMessage" not in calls:
            await asyncio.wait({running}, timeout=0.05)
        if running.done():
            await running
            return
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    "snippet", [s for s in snippets("python") if "spark" not in s.code], ids=str
)
def test_a_python_snippet_runs(snippet: Snippet, broker: TestBroker) -> None:
    code = compiled(snippet, broker.endpoint)
    names = names_of(broker)
    with cosmodrome.sync.Producer(broker.endpoint) as producer:
        producer.send(cosmodrome.Message("orders", b"1", tag="new"))

    if not code.co_flags & inspect.CO_COROUTINE:
        exec(code, names)
        for name, value in names.items():
            if name.startswith("test_"):
                value(broker, names["cosmodrome_names"])
        return

    async def scenario() -> None:
        with broker.recording() as calls:
            await until_it_ends_or_acknowledges(asyncio.ensure_future(eval(code, names)), calls)

    asyncio.run(scenario())


def shell_lines() -> list[tuple[str, str]]:
    """(place, command), comments cut off, continued lines joined."""
    found = []
    for snippet in snippets("sh"):
        text = snippet.code.replace("\\\n", " ")
        found += [(str(snippet), line.strip()) for line in text.splitlines()]
    return found


def test_the_commands_of_the_pages_work(
    broker: TestBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TestBroker(data=tmp_path):
        pass  # what `store check --data DIR` is shown on
    monkeypatch.setenv("COSMODROME_ENDPOINT", broker.endpoint)
    monkeypatch.setenv("COSMODROME_NEW_SECRET", "s3cret")
    ran = set()
    for place, line in shell_lines():
        words = shlex.split(line.replace("DIR", str(tmp_path)), comments=True)
        if words[:1] != ["cosmodrome"] or words[1] == "pipeline":
            continue
        if words[1] in {"serve", "config"}:
            assert serve_from(words[2:], show_only=True) == 0, (place, line)
            continue
        assert words[1] in GROUPS, (place, line)
        with pytest.raises(SystemExit) as ended:
            run(words[1:])
        assert (ended.value.code or 0) == ("# denied" in line), (place, line)
        ran.add(words[1])
    assert {"topic", "group", "dlq", "store", "user", "acl"} <= ran


@pytest.mark.parametrize("snippet", snippets("toml"), ids=str)
def test_a_file_of_topics_and_groups_can_be_applied(snippet: Snippet, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(snippet.code)
    with TestBroker() as own, pytest.raises(SystemExit) as ended:
        run(["definitions", "apply", str(file), "--endpoint", own.endpoint])
    assert not ended.value.code


def test_every_make_target_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z-]+)", page.read_text()))
        named |= {words[5:].split()[0] for _, words in shell_lines() if words.startswith("make ")}
        assert named <= targets, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_a_page_points_to_exists(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in link:
            assert (page.parent / link).exists(), link
    for path in re.findall(r"\b(?:docs|examples|deploy|tests|benchmarks)/[\w./-]*\.\w+", text):
        assert (ROOT / path).exists() or (page.parent / path).exists(), path


@pytest.mark.parametrize("snippet", snippets("js"), ids=str)
def test_what_a_page_shows_of_an_example_is_what_the_example_holds(snippet: Snippet) -> None:
    held = [path.read_text() for path in (ROOT / "examples" / "clients" / "node").glob("*.js")]
    assert any(snippet.code in text for text in held)


def test_decisions_are_numbered_one_by_one_and_say_so_themselves() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert numbers == list(range(1, len(pages) + 1))
    assert [page.read_text().partition(".")[0] for page in pages] == [f"# {n}" for n in numbers]
