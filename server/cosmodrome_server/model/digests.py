"""Hash functions of Python's own, where it has them.

hashlib would load OpenSSL, 5 MB and some milliseconds of each start, and of a small text
OpenSSL's MD5 takes more than twice as long.
"""

try:
    from _blake2 import blake2b  # type: ignore[import-not-found, unused-ignore]  # no stubs
    from _md5 import md5  # type: ignore[import-not-found, unused-ignore]  # no stubs
    from _sha1 import sha1  # type: ignore[import-not-found, unused-ignore]  # no stubs
except ImportError:  # a Python that was built without
    from hashlib import blake2b, md5, sha1

__all__ = ["blake2b", "md5", "sha1"]
