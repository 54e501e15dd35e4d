"""Paths that are taken apart once: a broker asks for the same few hundred files again and again."""

from pathlib import PosixPath


class KnownPath(PosixPath):
    """A path that remembers those below it."""

    _below: "dict[str, KnownPath]"

    def __truediv__(self, key: object) -> "KnownPath":
        assert isinstance(key, str)
        try:
            below = self._below
        except AttributeError:
            below = self._below = {}
        found = below.get(key)
        if found is None:
            found = below[key] = super().__truediv__(key)
        return found
