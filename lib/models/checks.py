"""What can be wrong with a pair, each with its own message: what it is, its value, and what to do."""

from typing import Collection

import torch

from lib.attention.operator import can_host_tree
from lib.lab.timing import free_memory
from lib.models import hub_errors

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


class PairError(ValueError):
    """A pair that cannot be loaded, or cannot work: what, why, and what to do."""


def each_of(what: str, said: object, known: Collection[str]) -> tuple[str, str]:
    """What "x", or "x|y" (target|drafter), says of target and drafter. PairError where one of them is not known."""
    both = str(said).split("|")
    if len(both) > 2 or not set(both) <= set(known):
        raise PairError(f"{what} is {said!r}; give one of {', '.join(known)}, or two as TARGET|DRAFTER")
    return both[0], both[-1]


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A torch dtype by its name."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise PairError(f"dtype is {name!r}; choose one of {', '.join(DTYPES)}")
    return DTYPES[name]


def dtypes_of(dtype: str | torch.dtype) -> tuple[torch.dtype, torch.dtype]:
    """The number formats of target and drafter, as "float32|bfloat16", or one for both."""
    target, drafter = each_of("dtype", str(dtype).removeprefix("torch."), DTYPES)
    return DTYPES[target], DTYPES[drafter]


def check_device(device: str | torch.device, dtype: torch.dtype) -> None:
    """PairError where this torch has no such device, or the device no such dtype."""
    try:
        torch.ones(1, device=device, dtype=dtype) + 1
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        name = str(dtype).removeprefix("torch.")
        raise PairError(f"device {str(device)!r} with dtype {name!r} cannot be used here ({first_line(error)}); "
                        "take device 'cpu', or another dtype") from None


def check_tree(source, config) -> None:
    """PairError where the model's attention cannot verify a tree in one forward."""
    reason = can_host_tree(config)
    if reason:
        raise PairError(f"{source} ({config.model_type}) cannot take a tree in one forward: {reason}; choose a model "
                        "with full attention, such as a Llama, a Qwen3 or a GPT-2")


def check_tokenizers(target, drafter, names: tuple[str, str], sizes: tuple[int, int]) -> None:
    """The same id must mean the same text to both. PairError with the first id that does not.

    Added tokens (chat marks and the like) may have other names, and embeddings (`sizes`) may be padded; but both models
    need an embedding for each token that the target's tokenizer can write, its padding token excepted.
    """
    ours, theirs = ({index: token for token, index in each.get_vocab().items()} for each in (target, drafter))
    added = [set(each.get_added_vocab().values()) for each in (target, drafter)]

    def ordinary(index: int) -> bool:
        return any(index in known and index not in extra for known, extra in zip((ours, theirs), added))

    differing = [i for i in sorted(ours.keys() | theirs.keys()) if ours.get(i) != theirs.get(i) and ordinary(i)]
    if differing:
        first = differing[0]
        raise PairError(f"{names[0]} and {names[1]} have different tokenizers: {len(differing)} of {len(ours)} ids "
                        f"differ, {first} is {ours.get(first)!r} to one and {theirs.get(first)!r} to the other; "
                        "a drafter needs its target's vocabulary, choose two members of one family")
    beyond = sorted(index for index in ours if index >= min(sizes) and index != target.pad_token_id)
    if beyond:
        raise PairError(f"{names[sizes.index(min(sizes))]} has embeddings for {min(sizes)} tokens, but the tokenizer "
                        f"of {names[0]} writes {len(beyond)} more, such as {ours[beyond[0]]!r}; "
                        "choose two members of one family")


def check_memory(weights: dict[tuple[str, torch.dtype], int], device: str | torch.device) -> None:
    """PairError where models of so many parameters, by name and dtype, do not fit into the device's free memory."""
    needed, free = sum(count * dtype.itemsize for (_, dtype), count in weights.items()), free_memory(device)
    if needed > free:
        named = " and ".join(f"{name} in {str(dtype).removeprefix('torch.')}" for name, dtype in weights)
        raise PairError(f"the weights of {named} need {gib(needed)}, {gib(free)} are free on {device}; take a smaller "
                        "dtype, smaller models or another device")


def no_memory(source, device: str | torch.device) -> PairError:
    """What is said where memory gave out in spite of the estimate."""
    return PairError(f"{source} did not fit into the memory of {device}, {gib(free_memory(device))} are free now; "
                     "take a smaller dtype, a smaller model or another device")


def why_not(source, error: BaseException) -> PairError:
    """What a failed reading of config, tokenizer or weights means, by the errors that caused it."""
    causes = list(hub_errors.chain(error))
    said = " ".join(str(cause) for cause in causes)
    refused, why = hub_errors.meaning(error), first_line(error)
    if "trust_remote_code" in said:
        meaning = "brings code of its own, which never runs here; choose a model that transformers knows"
    elif "does not recognize this architecture" in said or "Unrecognized model" in said:
        meaning = f"is of no type that this transformers knows ({why}); check its config.json, or choose another model"
    elif refused:
        meaning = refused
    elif "ignore_mismatched_sizes" in said:
        meaning = "has weights of other shapes than its config.json says; fetch or save both again"
    elif "safetensors" in said or any(type(cause).__name__ == "SafetensorError" for cause in causes):
        meaning = (f"holds no readable safetensors ({why}), and nothing else is read here; if you trust it, save it "
                   "again with `model.save_pretrained(FOLDER)` and give that folder")
    else:
        meaning = (f"cannot be read as a model ({why}); see that it has config.json, model.safetensors and tokenizer "
                   "files")
    return PairError(f"{source} {meaning}")


def first_line(error: BaseException) -> str:
    """An error's first line, as part of a sentence; its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:;, ") if lines else type(error).__name__


def gib(count: int) -> str:
    """Bytes in words."""
    return f"{count / 2**30:.1f} GiB"
