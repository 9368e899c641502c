"""Programs that a test starts and ends."""

import contextlib
import re
import socket
import subprocess
import time


@contextlib.contextmanager
def program(*arguments, **options):
    """Runs a program while the block runs. Its output is for `line`."""
    process = subprocess.Popen(arguments, **{"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True} | options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def line(process, pattern):
    """Waits for a line of the program's output that has the pattern, and returns its first group."""
    for text in process.stdout:
        if found := re.search(pattern, text):
            return found.group(1)
    raise RuntimeError(f"{process.args} ended before it printed {pattern}")


def free_port():
    """For a program that can't choose its port. Another program may take the port first; then this one says so and ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def eventually(condition, timeout=20):
    """Asks until the condition holds, and returns its value."""
    end = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError("the condition didn't come true in time")
        time.sleep(0.1)
    return value
