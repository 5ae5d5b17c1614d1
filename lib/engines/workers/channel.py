"""A worker's side of the connection with its driver.

Workers run with the Python of an engine's own environment, so they import the standard library and the engine alone.
Their output and errors are a log file, because engines print there.
"""

import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection


def serve(handlers: Mapping[str, Callable[..., object]]) -> None:
    """Answers requests, each a handler's name and arguments, with its result and an error's text, until the driver
    closes the connection. The argument of the command line is its file descriptor.
    """
    connection = Connection(int(sys.argv[1]))
    with suppress(EOFError):
        while True:
            name, arguments = connection.recv()
            try:
                reply = handlers[name](**arguments), ""
            except Exception as error:  # the driver raises it; the log has the whole of it
                traceback.print_exc()
                reply = None, f"{type(error).__name__}: {' '.join(str(error).split())}"
            connection.send(reply)
