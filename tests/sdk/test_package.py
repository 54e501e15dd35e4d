"""What importing the package does, and what it offers."""

import subprocess
import sys

import pytest

import cosmodrome

PROGRAM = """
import sys, threading, logging
handlers, threads = list(logging.root.handlers), threading.active_count()
import cosmodrome
assert logging.root.handlers == handlers and not logging.getLogger("cosmodrome").handlers
assert threading.active_count() == threads
print(*sorted(m.partition(".")[0] for m in sys.modules))
"""


def test_what_is_public_is_sorted_and_there() -> None:
    for module in (cosmodrome, cosmodrome.sync):
        assert module.__all__ == sorted(module.__all__, key=_as_ruff_sorts)
        assert len(set(module.__all__)) == len(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_every_public_class_of_the_package_is_exported() -> None:
    here = {
        name
        for name, value in vars(cosmodrome).items()
        if isinstance(value, type) and not name.startswith("_")
    }
    assert here <= set(cosmodrome.__all__)


def test_importing_starts_nothing_and_needs_nothing_of_the_server() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert not loaded & {"cosmodrome_server", "pytest", "opentelemetry", "lz4", "zstandard"}


@pytest.mark.parametrize(
    ("module", "missing"), [("otel", "opentelemetry"), ("prometheus", "prometheus_client")]
)
def test_a_part_whose_packages_are_missing_says_what_to_install(module: str, missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import cosmodrome.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"pip install 'cosmodrome[{module}]'" in done.stderr
