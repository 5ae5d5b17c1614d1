"""A worker's side of the conversation with its driver: a line of JSON for each request, and one for each reply.

Workers run with the Python of an engine's own environment, so they import the standard library and the engine alone.
Their output and errors are a log file, because engines print there.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping


def serve(handlers: Mapping[str, Callable[..., object]]) -> None:
    """Answers requests until the driver closes its end: {"do": name, ...} by the handler of this name.

    The two arguments of the command line are the file descriptors of requests and replies.
    """
    requests, replies = (os.fdopen(int(number), mode) for number, mode in zip(sys.argv[1:3], "rw"))
    for line in requests:
        request = json.loads(line)
        try:
            reply = {"reply": handlers[request.pop("do")](**request)}
        except Exception as error:  # the driver raises it; the log has the whole of it
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
