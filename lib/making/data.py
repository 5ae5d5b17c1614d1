"""The tokenizer, the token streams from which seeded windows are drawn, and text that a target writes itself."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from lib.decoding.batch import continuations
from lib.making.corpus import mixture

VOCABULARY = 4096
END = "<|end|>"  # token 0: between documents, and the end of a text
TOKENIZER_SAMPLE = 24_000_000  # characters of the mixture that the tokenizer is trained on
HELD_OUT_SHARE = 0.02
PROMPT_TOKENS, NEW_TOKENS, ROWS = 96, 160, 64  # of text that a target writes itself
# Words with their leading space, single digits (so that arithmetic can be learned), runs of signs, line breaks with
# indentation.
WORDS = r" ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\n[ \t]*|[ \t]+|\s+"


@dataclass(frozen=True)
class Streams:
    """Token streams by kind, uint16, with token 0 after each document."""

    train: dict[str, np.ndarray]
    held_out: dict[str, np.ndarray]


def documents(characters: int, seed: int = 0) -> dict[tuple[str, bool], list[str]]:
    """All documents by (kind, held out): the real ones, and generated ones in proportion to `mixture.SHARES`."""
    files = mixture.sources()
    texts = {(kind, held): list(mixture.real(files, kind, held))
             for kind in mixture.REAL_KINDS for held in (False, True)}
    for kind in mixture.GENERATORS:
        size = int(mixture.SHARES[kind] * characters)
        texts[kind, False] = list(mixture.generated(kind, False, seed, size))
        texts[kind, True] = list(mixture.generated(kind, True, seed, int(max(HELD_OUT_SHARE * size, 120_000))))
    return texts


def train_tokenizer(texts: dict[str, list[str]], seed: int = 0) -> Tokenizer:
    """A byte-level BPE of 4,096 tokens, from a sample of each kind's training documents."""
    rng = np.random.default_rng(seed)
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


def encode(tokenizer: Tokenizer, texts: Iterable[str]) -> np.ndarray:
    """One uint16 stream of the documents, each followed by token 0."""
    encoded = tokenizer.encode_batch_fast(list(texts))
    return np.concatenate([np.array([*document.ids, 0], dtype=np.uint16) for document in encoded])


def save_streams(streams: Streams, folder: Path) -> None:
    """Writes the streams as .npy files and an index of their lengths."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "held_out"):
        for kind, stream in getattr(streams, split).items():
            np.save(folder / f"{split}-{kind}.npy", stream, allow_pickle=False)
    lengths = {split: {kind: len(s) for kind, s in getattr(streams, split).items()} for split in ("train", "held_out")}
    (folder / "lengths.json").write_text(json.dumps(lengths, indent=1))


def load_streams(folder: Path) -> Streams:
    """Opens the streams of `save_streams`, memory-mapped."""
    return Streams(**{split: {kind: np.load(folder / f"{split}-{kind}.npy", mmap_mode="r", allow_pickle=False)
                              for kind in mixture.KINDS} for split in ("train", "held_out")})


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


def own_text(target, folder: Path, name: str, *, tokens: int, seed: int) -> np.ndarray:
    """A stream uint16[N] of training prompts, each continued by the target at temperature 1; made once under `folder`.

    A drafter should learn its target on text that the target writes (Zhou et al. 2024, DistillSpec, on-policy data).
    `target` has attn_implementation "tree". Prompts are windows of the training streams, in the mixture's shares.
    """
    path = folder / f"own-{name}.npy"
    if path.exists():
        return np.load(path, mmap_mode="r", allow_pickle=False)
    streams = load_streams(folder)
    count = -(-tokens // (PROMPT_TOKENS + NEW_TOKENS))
    prompts = windows(streams.train, mixture.SHARES, count, PROMPT_TOKENS, seed, step=0)
    written = continuations(target, list(prompts), max_new_tokens=NEW_TOKENS, temperature=1.0, rows=ROWS,
                            eos_token_id=0, generator=torch.Generator().manual_seed(seed))
    stream = np.concatenate([np.array([*prompt.tolist(), *row, 0], dtype=np.uint16)
                             for prompt, row in zip(prompts, written)])
    np.save(path, stream, allow_pickle=False)
    return stream
