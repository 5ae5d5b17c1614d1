"""The family's tokenizer and token streams, the seeded windows of a training, and text that a target writes itself."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Sequence

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from lib.decoding.loop import continuations
from lib.training.corpus import mixture
from lib.training.loop import Plan, counted

VOCABULARY = 4096
END = "<|end|>"  # token 0: between documents, and the end of a text
CHARACTERS = 70_000_000  # of all text, of which `mixture.SHARES` gives the size of the generated kinds
TOKENIZER_SAMPLE = 24_000_000  # characters of the mixture that the tokenizer is trained on
HELD_OUT_SHARE, HELD_OUT_LEAST = 0.02, 120_000  # of the characters of a generated kind
OWN_TEXT_SHARE = 0.5  # of the windows of a distilled member or a head: text that its target wrote
OWN_TEXT_MOST = 400_000  # tokens of a training of which a target writes this share; of longer ones it writes no more
PROMPT_TOKENS, NEW_TOKENS, ROWS = 96, 160, 64  # of text that a target writes itself
# Words with their leading space, single digits (so that arithmetic can be learned), runs of signs, line breaks with
# indentation.
WORDS = r" ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\n[ \t]*|[ \t]+|\s+"


@dataclass(frozen=True)
class Streams:
    """Token streams by kind, uint16, with token 0 after each document."""

    train: dict[str, np.ndarray]
    held_out: dict[str, np.ndarray]


class Windows(NamedTuple):
    """Rows of text: tokens int64[R, T + 1]; learned bool[R, T], whether the token after each of T is one to learn."""

    tokens: torch.Tensor
    learned: torch.Tensor

    @classmethod
    def all_learned(cls, tokens: torch.Tensor) -> "Windows":
        """Of tokens int64[R, T + 1]."""
        return cls(tokens, torch.ones_like(tokens[:, 1:], dtype=torch.bool))

    def first(self, rows: int | None) -> "Windows":
        """At most so many rows; all for None."""
        return Windows(*(part[:rows] for part in self))

    def to(self, device) -> "Windows":
        """On another device."""
        return Windows(*(part.to(device) for part in self))


def prepare(folder: Path) -> Streams:
    """The streams, memory-mapped; they and tokenizer.json are made once under `folder`."""
    files = {split: {kind: folder / f"{split}-{kind}.npy" for kind in mixture.KINDS} for split in ("train", "held_out")}
    if not (folder / "tokenizer.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        print(f"making the tokenizer and the token streams in {folder}, once; this takes minutes", flush=True)
        sources = mixture.sources()
        texts = {split: {kind: documents(sources, kind, split == "held_out") for kind in mixture.KINDS}
                 for split in files}
        tokenizer = train_tokenizer(texts["train"])
        for split, by_kind in files.items():
            for kind, path in counted(list(by_kind.items()), f"kinds of text ({split}) as tokens"):
                np.save(path, encode(tokenizer, texts[split][kind]), allow_pickle=False)
        tokenizer.save(str(folder / "tokenizer.json"))  # last, as the sign that all is there
    return Streams(**{split: {kind: np.load(path, mmap_mode="r", allow_pickle=False) for kind, path in by_kind.items()}
                      for split, by_kind in files.items()})


def documents(sources: list[mixture.Source], kind: str, held_out: bool) -> list[str]:
    """All documents of a kind: those of the sources, or generated ones in proportion to `mixture.SHARES`."""
    if kind in mixture.REAL_KINDS:
        return list(mixture.real(sources, kind, held_out))
    size = int(mixture.SHARES[kind] * CHARACTERS)
    size = int(max(HELD_OUT_SHARE * size, HELD_OUT_LEAST)) if held_out else size
    return list(mixture.generated(kind, held_out, seed=0, characters=size))


def train_tokenizer(texts: dict[str, list[str]]) -> Tokenizer:
    """A byte-level BPE of 4,096 tokens, from a sample of each kind's training documents."""
    rng = np.random.default_rng(0)
    sample: list[str] = []
    for kind, listed in texts.items():
        budget = mixture.SHARES[kind] * TOKENIZER_SAMPLE
        for index in rng.permutation(len(listed)):
            if budget < 0:
                break
            sample.append(listed[index])
            budget -= len(listed[index])
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[END],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> np.ndarray:
    """One uint16 stream of the documents, each followed by token 0."""
    encoded = tokenizer.encode_batch_fast(texts)
    return np.concatenate([np.array([*document.ids, 0], dtype=np.uint16) for document in encoded])


def windows(
    streams: dict[str, np.ndarray], shares: dict[str, float], rows: int, length: int, seed: int, step: int
) -> torch.Tensor:
    """The training windows of one step, int64[rows, length]: a function of seed and step, so that runs can resume."""
    rng = np.random.default_rng([seed, step])
    kinds = list(shares)
    weights = np.array([shares[kind] for kind in kinds])
    picked = rng.choice(len(kinds), size=rows, p=weights / weights.sum())
    starts = rng.random(rows)
    cut = [streams[kinds[k]][(at := int(u * (len(streams[kinds[k]]) - length))) : at + length]
           for k, u in zip(picked, starts)]
    return torch.from_numpy(np.stack(cut).astype(np.int64))


def with_own_text(target, name: str, streams: Streams, folder: Path,
                  plan: Plan) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The training streams and their shares, with text that the target wrote, which is made once under `folder`.

    A drafter should learn its target on text that the target writes (Zhou et al. 2024, DistillSpec, on-policy data):
    prompts from the training streams, in the mixture's shares, each continued at temperature 1. `target` has
    attn_implementation "tree".
    """
    path = folder / f"own-{Path(name).name}.npy"
    if not path.exists():
        tokens = int(OWN_TEXT_SHARE * min(plan.tokens, OWN_TEXT_MOST))
        count = -(-tokens // (PROMPT_TOKENS + NEW_TOKENS))
        print(f"{name} writes {count:,} texts of its own, from which a part is learned, once", flush=True)
        prompts = windows(streams.train, mixture.SHARES, count, PROMPT_TOKENS, plan.seed, step=0)
        written = continuations(target, list(prompts), max_new_tokens=NEW_TOKENS, temperature=1.0, rows=ROWS,
                                eos_token_id=0, generator=torch.Generator().manual_seed(plan.seed))
        np.save(path, np.concatenate([np.array([*prompt.tolist(), *row, 0], dtype=np.uint16)
                                      for prompt, row in zip(prompts, written)]), allow_pickle=False)
    shares = {kind: share * (1 - OWN_TEXT_SHARE) for kind, share in mixture.SHARES.items()}
    return ({**streams.train, "own": np.load(path, mmap_mode="r", allow_pickle=False)},
            {**shares, "own": OWN_TEXT_SHARE})
