"""Times what steps cost where a target is served: `python measure_served.py TARGET [--drafter D] > costs.csv`.

It needs torch and transformers alone, so that the file can be copied to that machine. A check of n draft tokens is one
forward pass over n + 1 tokens per sequence that follow a cached text; all numbers of tokens are timed in shuffled
turns. The tokens are a text's, by default this script's, from another position on for each sequence: a mixture of
experts routes random tokens otherwise. The output is a table of costs, as `lib.study.costs_files` reads it.
"""

import argparse
import csv
import platform
import random
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NODES = (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64)  # both sides of usual steps
CHAINS = (1, 4)


def main() -> None:
    """Reads the command line, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", help="a folder, or a name of the Hugging Face hub")
    parser.add_argument("--drafter", help="a draft model, for the rows of the method model")
    parser.add_argument("--batches", default="1,8", help="batch sizes, with commas (default: 1,8)")
    parser.add_argument("--text", type=Path, default=__file__,
                        help="a file of text such as the model writes (default: this script)")
    parser.add_argument("--prefix", type=int, default=512, help="cached tokens per sequence (default: 512)")
    parser.add_argument("--repeats", type=int, default=15, help="timed passes of each number (default: 15)")
    parser.add_argument("--dtype", default="auto", help="number format, as torch names it (default: the model's own)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    common = dict(dtype=args.dtype, device=args.device, batches=[*map(int, args.batches.split(","))],
                  prefix=args.prefix, repeats=args.repeats, text=args.text.read_text(encoding="utf-8"))
    checks = times(args.target, nodes=NODES, **common)
    passes = times(args.drafter, nodes=(0,), **common) if args.drafter else {}
    machine = torch.cuda.get_device_name() if args.device.startswith("cuda") else platform.processor() or args.device
    write(Path(args.target).name, checks, passes, machine, sys.stdout)


def write(target: str, checks: dict, passes: dict, machine: str, file) -> None:
    """The table. checks, passes: `times` of the target, and of the drafter's plain steps, one per level of a chain."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["machine", "source", "backend", "batch", "method", "shape", "nodes", "ms", "low", "high", "n"])
    rows = [("forced" if nodes else "plain", f"nodes:{nodes}", nodes, batch, 1, times)
            for (batch, nodes), times in checks.items()]
    rows += [("model", f"chain:{length}", length, batch, length, times)
             for (batch, _), times in passes.items() for length in CHAINS]
    for method, shape, nodes, batch, steps, (*quartiles, count) in rows:
        low, middle, high = (f"{steps * quartile:.4f}" for quartile in quartiles)
        writer.writerow([machine, f"measure_served.py, {target}", target, batch, method, shape, nodes, middle, low,
                         high, count])


@torch.inference_mode()
def times(name: str, *, dtype: str, device: str, batches, nodes, prefix: int, repeats: int, text: str) -> dict:
    """Quartiles of the milliseconds of a forward pass with its greedy choice, and the number of timed passes, the first
    left out, by (batch, nodes). SystemExit names a cache that cannot be cropped.
    """
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype).to(device).eval()
    tokenizer, quartiles, order = AutoTokenizer.from_pretrained(name), {}, random.Random(0)
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    for batch in batches:
        tokens = rows(tokenizer, text, batch, prefix + max(nodes) + 1).to(device)
        cache = getattr(model(tokens[:, :prefix], use_cache=True, logits_to_keep=1), "past_key_values", None)
        check_crop(name, model, tokens[:, prefix:], cache)
        milliseconds = {count: [] for count in nodes}
        for _ in range(repeats + 1):
            for count in order.sample(list(nodes), len(nodes)):
                wait()  # from idle device to idle device
                start = time.perf_counter()
                model(tokens[:, prefix : prefix + count + 1], past_key_values=cache, use_cache=True).logits.argmax(-1)
                wait()
                milliseconds[count].append(1000 * (time.perf_counter() - start))
                cache.crop(-(count + 1))
        for count, all_times in milliseconds.items():
            quartiles[batch, count] = *statistics.quantiles(all_times[1:], n=4, method="inclusive"), repeats
    return quartiles


def rows(tokenizer, text: str, batch: int, length: int) -> torch.Tensor:
    """int64[batch, length]: the text's tokens again and again, each row from another position on."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not ids:
        raise SystemExit("the text has no token; give a file with a few hundred words")
    starts = [row * len(ids) // batch for row in range(batch)]
    return torch.tensor([[ids[(start + position) % len(ids)] for position in range(length)] for start in starts])


def check_crop(name: str, model, block: torch.Tensor, cache) -> None:
    """SystemExit, with the kinds of its layers, for a cache that `crop` does not put back as it was before a block."""
    if hasattr(cache, "activate_past_recording"):
        cache.activate_past_recording()  # else a sliding window drops what `crop` would need
    with suppress(AttributeError, RuntimeError, TypeError, ValueError):
        logits = []
        for _ in range(2):
            logits.append(model(block, past_key_values=cache, use_cache=True).logits.float())
            cache.crop(-block.shape[1])
        is_croppable, tolerance = getattr(cache, "is_croppable", True), 0.01 * logits[0].abs().max().item()
        if is_croppable and torch.allclose(*logits, rtol=0, atol=tolerance):
            return
    names = ", ".join(sorted({type(layer).__name__ for layer in getattr(cache, "layers", [cache])}))
    raise SystemExit(f"the cache of {name} ({names}) cannot be cropped to the text again, so that a check cannot be "
                     "repeated; time its checks in the engine that serves it, and write the table by hand")


if __name__ == "__main__":
    main()
