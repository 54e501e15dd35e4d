"""Bytes and files: frames, segments, the commit log, its index, recovery, retention."""
