"""What this process is doing, for an operator who asks: stacks of threads and of asyncio tasks."""

import asyncio
import io
import sys
import threading
import traceback

# One answer fits into a telemetry message with room to spare.
TRACE_CHARS_MAX = 256 * 1024


def stacks() -> str:
    """The stacks of every thread and of every task of the running loop, as text."""
    out = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - its documented use
        out.write(f"thread {names.get(ident, ident)}\n")
        out.writelines(traceback.format_stack(frame))
        out.write("\n")
    for task in sorted(asyncio.all_tasks(), key=asyncio.Task.get_name):
        out.write(f"task {task.get_name()}\n")
        # Not `print_stack`: it fails on frames whose source is not at hand.
        out.writelines(
            f"  {frame.f_code.co_qualname}:{frame.f_lineno}\n" for frame in task.get_stack()
        )
        out.write("\n")
    return out.getvalue()[:TRACE_CHARS_MAX]
