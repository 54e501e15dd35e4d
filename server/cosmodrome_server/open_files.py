"""How many files the process may have open: as many as its connections need, if it is let.

A connection is an open file, behind the splitter of the grpcio front three. Shells and systemd give
programs a soft limit of 1,024, because of old ones that cannot count further, and a hard one that
any program may raise its soft one to.
"""

import resource

FILES_PER_CONNECTION = 3
# Segments, indexes, buckets, sockets of the server's own.
FILES_BESIDE = 1_024


def raise_limit(connections: int) -> int:
    """Let so many connections be open, or as many as the hard limit allows; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections * FILES_PER_CONNECTION + FILES_BESIDE
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or allowed <= soft:
        return limit()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):
        return soft  # some systems have a bound of their own below the hard limit
    return allowed


def connections(wanted: int, files_each: int) -> int:
    """As many connections as are wanted, or as leave the server files of its own.

    Without one it could not begin its next segment, or load what it needs for the first time.
    """
    files = limit()
    return min(wanted, (files - min(FILES_BESIDE, files // 2)) // files_each)


def limit() -> int:
    """The soft limit; a very large number for none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 62
