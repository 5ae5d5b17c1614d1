"""Tables of what a target was seen to say behind a few tokens, in files: config.json and model.safetensors."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Sequence

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

KIND = "ngrams"
FILES = "config.json", "model.safetensors"


@dataclass(frozen=True)
class NgramTables:
    """What a target said most often behind 1, 2, .. tokens: orders[n - 1] maps contexts of n tokens to a token.

    A context's number, its key, has its tokens as digits in base V, the last token the lowest. An entry of a longer
    context stands only where it says other than shorter ones, so that whoever looks asks the longest first. vocabulary:
    V, the target's. name_or_path: the folder that they were read from.
    """

    orders: tuple[Mapping[int, int], ...]
    vocabulary: int
    name_or_path: str = ""

    def __post_init__(self):
        if self.vocabulary ** len(self.orders) >= 2**63:
            raise ValueError(f"contexts of {len(self.orders)} tokens of {self.vocabulary} have no number of 64 bits; "
                             "give tables of shorter ones")

    def favourite(self, keys: Sequence[int]) -> int:
        """What is said behind the longest known context; keys: of the last 1, 2, .. tokens. -1 where none is known."""
        known = (order.get(key) for order, key in reversed([*zip(self.orders, keys)]))
        return next((token for token in known if token is not None), -1)


def save(tables: NgramTables, folder: Path, about: Mapping[str, object]) -> None:
    """Writes the tables; `about` goes to config.json beside what reading them needs."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"kind": KIND, "vocab_size": tables.vocabulary, "orders": len(tables.orders), **about}
    (folder / FILES[0]).write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    dtype = torch.uint16 if tables.vocabulary <= 2**16 else torch.int32
    tensors = {}
    for n, order in enumerate(tables.orders, start=1):
        keys, places = torch.tensor(sorted(order), dtype=torch.long), tables.vocabulary ** torch.arange(n - 1, -1, -1)
        tensors[f"context.{n}"] = (keys[:, None] // places % tables.vocabulary).to(dtype)
        tensors[f"said.{n}"] = torch.tensor([order[key] for key in keys.tolist()], dtype=torch.long).to(dtype)
    save_file(tensors, folder / FILES[1])


def load(folder: str | Path, target) -> NgramTables:
    """Tables that `save` wrote, context.N [E, N] and said.N [E]. ValueError for what does not fit the target."""
    folder, vocabulary = Path(folder), target.config.get_text_config().vocab_size
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise ValueError(f"{folder} lacks {' and '.join(missing)}; count the tables with `python -m lib making "
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
    return NgramTables(tuple(entries), vocabulary, str(folder))


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
