"""Modules that are loaded when something of them is used for the first time.

Libraries import what few of their users need: asyncio all of TLS, protobuf its twin in Python. A
broker that leaves TLS to the gate would load them for nothing, and be ready later.

    put_off(["ssl"])
    import asyncio        sys.modules["ssl"] is there, and empty
    ssl.SSLContext        now it is loaded, into the same module that asyncio holds

Only time can tell: `import ssl`, before and after, gives this one module, and the first look at
anything in it loads it, on whichever thread. importlib.util.LazyLoader promises the same, but
loads a module as soon as it is imported a second time, which asyncio does. Python 3.15 has a
statement for it, `lazy import` (PEP 810).
"""

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

# One for all: whoever loads a module may come upon the next.
_loading = threading.RLock()
_BEGUN = object()


def put_off(names: Iterable[str]) -> None:
    """Put these modules off, where they are not imported yet, for the rest of this process.

    Not for a module whose import may fail where others try it and do without it: theirs would
    not fail. Nor for one that is needed when something goes wrong: there may be no file left to
    open, or no memory.
    """
    sys.meta_path.insert(0, _Finder(frozenset(names)))


@contextlib.contextmanager
def missing(name: str) -> Iterator[None]:
    """Have a module be missing in this block, for importing what can do without it."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # import says: no such module
    try:
        yield
    finally:
        del sys.modules[name]


class _Finder:
    """Finds what is to be put off, where Python would."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_reloaded = target is not None
        if name not in self._names or is_reloaded:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _PuttingOff(spec.loader))
        return spec


class _PuttingOff:
    """A loader that leaves the module to be loaded by the true one."""

    def __init__(self, loader: "Loader") -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        spec.loader = module.__loader__ = self._loader
        module.__class__ = _Later


class _Later(ModuleType):
    """A module that was imported and not yet used."""

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - as the module has it
        # The import system asks this of a module that is imported again.
        if name != "__spec__":
            _load(self)
        return ModuleType.__getattribute__(self, name)  # no super(): it may be no _Later now

    def __setattr__(self, name: str, value: object) -> None:
        _load(self)  # which would overwrite it
        ModuleType.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        _load(self)
        ModuleType.__delattr__(self, name)


def _load(module: ModuleType) -> None:
    """Load a module, once; whoever asks meanwhile on other threads waits, as with any import."""
    with _loading:
        spec = module.__spec__
        assert spec is not None
        assert spec.loader is not None
        # Loaded while we waited; or it is we who are loading it, and it looks at itself.
        if type(module) is not _Later or spec.loader_state is _BEGUN:
            return
        spec.loader_state = _BEGUN
        try:
            spec.loader.exec_module(module)
        finally:
            spec.loader_state = None
        object.__setattr__(module, "__class__", ModuleType)
