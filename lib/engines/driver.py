"""What all backends share: their interface, what a call gave, and the process that a serving engine runs in.

An engine runs in a process and an environment of its own (`environments`). Its driver starts it with one way to draft
and decodes prompts of token ids, so that no tokenizer comes between; several may run at the same time, to be timed in
turns.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

from lib.engines.methods import PLAIN, Way
from lib.lab.provenance import HOME

LOG_LINES = 8  # last lines of a log that an error quotes
PATIENCE = 10  # seconds that a process has to end


@dataclass(frozen=True)
class Decoded:
    """What one call gave for prompts that were decoded together.

    tokens: of each prompt, without the prompt. seconds: of the call; prefill: of it until each prompt had its first
    token; drafting: of it in drafting. steps: forward passes of the target after the prefill; drafting_steps: those of
    them in which drafting takes forward passes, or all where it never does. As the backend counts: drafts, rounds with
    at least one draft token; drafted and accepted, draft tokens. NaN or -1 where it counts none.
    """

    tokens: Sequence[Sequence[int]]
    seconds: float
    prefill: float
    drafting: float = float("nan")
    steps: int = -1
    drafting_steps: int = -1
    drafts: int = -1
    drafted: int = -1
    accepted: int = -1


class Running(AbstractContextManager):
    """A backend that has started with a way to draft; leaving the context ends it."""

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int, ends: Sequence[int] = (),
               drafted: int | None = None) -> Decoded:
        """Decodes prompts together, greedily, each to so many tokens or to one of `ends`.

        drafted: with the method FORCED, the draft tokens of each round, of which none is accepted: each round then
            gives one token, and the time between two tokens is that of a check. The output may be invalid.
        RuntimeError where the engine dies.
        """

    def __exit__(self, *error) -> None:
        """Nothing has to end."""


@dataclass(frozen=True)
class Engine:
    """A serving engine with a number format and a target: a backend. The others, `own.Own` and `log.Log`, have the same
    interface: `start`, `line`, name, batches, idles, padded and at_once.

    name: in tables. compiled: whether vLLM compiles the model, for which it needs a minute and a C++ compiler. target:
    as `load_pair` gives it. Of an engine's class: title; environment; methods; words, which may follow its name: number
    formats and options. batches: whether it decodes several prompts together while it drafts. idles: whether a round
    without a draft differs from a plain step. padded: whether each row of a check is as wide as the widest. at_once:
    ways that run at the same time, beside plain decoding; each has a process with weights of its own.
    """

    name: str
    dtype: str = "float32"
    compiled: bool = False
    target: object = None
    threads: int = 1
    words = ("float32", "bfloat16")
    batches, idles, padded, at_once = True, False, False, 3

    def start(self, way: Way, *, window: int, batch: int, log: Path) -> Running:
        """The engine with a way to draft. window: positions of prompt and answer together; batch: prompts decoded
        together at most; log: the file of the process's output. RuntimeError with its last lines where it ends.
        """

    def command(self, way: Way) -> str:
        """The options, or lines of code, by which the engine drafts."""

    def line(self, way: Way) -> str:
        """What a user sets to decode so, with paths from the repository's root on; nothing for plain decoding."""
        return "" if way.method == PLAIN else self.command(way).replace(f"{HOME}/", "")


class Worker(Running):
    """A script of `workers` that another Python runs, which answers requests over a connection.

    environment: variables, in place of this process's own where both have one. log: of output and errors. start: what
    the script starts the engine with.
    """

    def __init__(self, name: str, python: Path, script: str, log: Path, environment: Mapping[str, str], **start):
        self.name, self.log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        path = Path(__file__).with_name("workers") / script
        self._connection, worker_end = Pipe()
        inherited = {name: value for name, value in os.environ.items()  # but what leads to this process's packages
                     if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
        with open(log, "wb") as file, worker_end:
            self.process = subprocess.Popen(
                [python, path, str(worker_end.fileno())], env=inherited | dict(environment), stdin=subprocess.DEVNULL,
                stdout=file, stderr=file, pass_fds=[worker_end.fileno()], start_new_session=True)
        try:
            self.ask("start", **start)
        except BaseException:
            self.__exit__()
            raise

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int, ends: Sequence[int] = (),
               drafted: int | None = None) -> Decoded:
        return Decoded(**self.ask("decode", prompts=prompts, new_tokens=new_tokens, ends=list(ends), drafted=drafted))

    def ask(self, handler: str, **arguments):
        """What a handler returns. RuntimeError where it raises, or where the process dies."""
        try:
            self._connection.send((handler, arguments))
            reply, error = self._connection.recv()
        except (EOFError, ConnectionError):
            end(self.process)
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
            raise RuntimeError("\n  ".join((f"{self.name} ended with status {self.process.returncode}; the last lines "
                                           f"of {self.log}:", *lines))) from None
        if error:
            raise RuntimeError(f"{self.name} refused: {error}; its log is {self.log}")
        return reply

    def __exit__(self, *error) -> None:
        """Closes the connection, at which the process ends."""
        self._connection.close()
        end(self.process)


def end(process: subprocess.Popen) -> None:
    """Waits for the first process of a session, and kills what is left of the session then."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)
    with suppress(ProcessLookupError):  # where nothing is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
