"""Tables of what a target was seen to say behind a few tokens, in files: config.json and model.safetensors."""

import json
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Mapping, Sequence

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

KIND = "ngrams"
FILES = "config.json", "model.safetensors"


@dataclass(frozen=True)
class Order:
    """The entries of one length of context: keys in ascending order, and the token behind each."""

    keys: array
    said: array

    def get(self, key: int) -> int | None:
        """The token behind a context; None where the table has none."""
        at = bisect_left(self.keys, key)
        return self.said[at] if at < len(self.keys) and self.keys[at] == key else None


@dataclass(frozen=True)
class NgramTables:
    """What a target said most often behind 1, 2, .. tokens: orders[n - 1] knows contexts of n tokens.

    A context's number, its key, has its tokens as digits in base V, the last token the lowest. An entry of a longer
    context stands only where it says other than shorter ones, so that whoever looks asks the longest first. vocabulary:
    V, the target's. name_or_path: the folder that they were read from.
    """

    orders: tuple[Order, ...]
    vocabulary: int
    name_or_path: str = ""

    @classmethod
    def of(cls, entries: Sequence[Mapping[int, int]], vocabulary: int, name_or_path: str = "") -> "NgramTables":
        """From what stands behind contexts of 1, 2, .. tokens, by the contexts' numbers."""
        if vocabulary ** len(entries) >= 2**63:
            raise ValueError(f"contexts of {len(entries)} tokens of {vocabulary} have no number of 64 bits; give "
                             "tables of shorter ones")
        orders = (Order(array("q", sorted(known)), array("i", (known[key] for key in sorted(known))))
                  for known in entries)
        return cls(tuple(orders), vocabulary, name_or_path)

    def after(self, keys: Sequence[int]) -> Iterator[int]:
        """What is said behind a text, the longest context's first; keys: of its last 1, 2, .. tokens."""
        for n in range(min(len(keys), len(self.orders)), 0, -1):
            if (token := self.orders[n - 1].get(keys[n - 1])) is not None:
                yield token

    def favourite(self, keys: Sequence[int]) -> int:
        """The first of them; -1 where there is none."""
        return next(self.after(keys), -1)


def save(tables: NgramTables, folder: Path, about: Mapping[str, object]) -> None:
    """Writes the tables; `about` goes to config.json beside what reading them needs."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"kind": KIND, "vocab_size": tables.vocabulary, "orders": len(tables.orders), **about}
    (folder / FILES[0]).write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    dtype = torch.uint16 if tables.vocabulary <= 2**16 else torch.int32
    tensors = {}
    for n, order in enumerate(tables.orders, start=1):
        digits = [[key // tables.vocabulary**place % tables.vocabulary for place in reversed(range(n))]
                  for key in order.keys]
        tensors[f"context.{n}"] = torch.tensor(digits, dtype=torch.long).reshape(-1, n).to(dtype)
        tensors[f"said.{n}"] = torch.tensor(list(order.said), dtype=torch.long).to(dtype)
    save_file(tensors, folder / FILES[1])


def load(folder: str | Path, target) -> NgramTables:
    """Tables that `save` wrote, context.N [E, N] and said.N [E]. ValueError for what does not fit the target."""
    folder, vocabulary = Path(folder), target.config.get_text_config().vocab_size
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise ValueError(f"{folder} lacks {' and '.join(missing)}; count the tables with `python -m lib.training "
                         "ngrams --target TARGET`, or name the folder of others")
    try:
        settings, tensors = json.loads((folder / FILES[0]).read_text()), load_file(folder / FILES[1])
    except (ValueError, SafetensorError) as error:
        raise ValueError(f"{folder} cannot be read as tables of n-grams ({error}); count them anew") from error
    if settings.get("kind") != KIND or not isinstance(settings.get("orders"), int):
        raise ValueError(f"{folder} holds {settings.get('kind')!r}, not {KIND!r} of some orders; name another folder")
    if settings.get("vocab_size") != vocabulary:
        raise ValueError(f"{folder} was counted of a target with vocab_size {settings.get('vocab_size')}, this one has "
                         f"{vocabulary}; take the tables of this target")
    wanted = {f"{name}.{n}" for n in range(1, settings["orders"] + 1) for name in ("context", "said")}
    if wanted != tensors.keys():
        raise ValueError(f"the tensors of {folder} are not those of its config.json (missing: "
                         f"{', '.join(sorted(wanted - tensors.keys())) or 'none'}; unexpected: "
                         f"{', '.join(sorted(tensors.keys() - wanted)) or 'none'}); count the tables anew")
    entries = [_entries(folder, n, tensors[f"context.{n}"], tensors[f"said.{n}"], vocabulary)
               for n in range(1, settings["orders"] + 1)]
    return NgramTables.of(entries, vocabulary, str(folder))


def _entries(folder: Path, n: int, context: Tensor, said: Tensor, vocabulary: int) -> dict[int, int]:
    if context.shape != (len(said), n) or said.dim() != 1:
        raise ValueError(f"{folder}: context.{n} is {tuple(context.shape)} and said.{n} {tuple(said.shape)}, not "
                         f"[E, {n}] and [E]; count the tables anew")
    contexts, tokens = context.long(), said.long()
    if len(said) and not (0 <= min(contexts.min(), tokens.min()) and max(contexts.max(), tokens.max()) < vocabulary):
        raise ValueError(f"{folder}: order {n} has tokens that are none of the vocabulary's {vocabulary}; count the "
                         "tables anew")
    keys = (contexts * vocabulary ** torch.arange(n - 1, -1, -1)).sum(-1)
    return dict(zip(keys.tolist(), tokens.tolist()))
