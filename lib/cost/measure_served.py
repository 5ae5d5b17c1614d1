"""Times what a round costs where a target is served: `python measure_served.py TARGET [--drafter D] > theirs.csv`.

It needs torch and transformers alone, so that the file can be copied to that machine. A check of n drafted tokens is
one forward pass over n + 1 tokens per sequence behind a cached text; all numbers of tokens are timed in shuffled turns.
The output is a table of costs, as `served` reads it: batch, nodes, check_ms, draft_ms.
"""

import argparse
import random
import statistics
import sys
import time

import torch
from transformers import AutoModelForCausalLM

NODES = (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64)  # both sides of the steps that a check's cost may have


def main() -> None:
    """Reads the command line, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", help="a folder, or a name of the Hugging Face hub")
    parser.add_argument("--drafter", help="a draft model, for the column draft_ms")
    parser.add_argument("--batches", default="1,8", help="batch sizes, with commas (default: 1,8)")
    parser.add_argument("--prefix", type=int, default=512, help="cached tokens per sequence (default: 512)")
    parser.add_argument("--repeats", type=int, default=15, help="timed passes of each number (default: 15)")
    parser.add_argument("--dtype", default="auto", help="number format, as torch names it (default: the model's own)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    dtype = args.dtype if args.dtype == "auto" else getattr(torch, args.dtype)
    batches = [int(batch) for batch in args.batches.split(",")]
    target = times(args.target, dtype, args.device, batches, NODES, args.prefix, args.repeats)
    drafter = times(args.drafter, dtype, args.device, batches, (0,), args.prefix, args.repeats) if args.drafter else {}
    write(target, drafter, sys.stdout)


def write(target: dict, drafter: dict, file) -> None:
    """The table; target, drafter: milliseconds by (batch, nodes), for the drafter of its plain steps."""
    print("batch,nodes,check_ms" + (",draft_ms" if drafter else ""), file=file)
    for (batch, nodes), check in target.items():
        print(batch, nodes, f"{check:.4f}", *([f"{drafter[batch, 0]:.4f}"] if drafter else []), sep=",", file=file)


@torch.inference_mode()
def times(name: str, dtype, device: str, batches, nodes, prefix: int, repeats: int) -> dict[tuple[int, int], float]:
    """Median milliseconds of a forward pass by (batch, nodes)."""
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype).to(device).eval()
    found, order = {}, random.Random(0)
    for batch in batches:
        text = torch.randint(model.config.get_text_config().vocab_size, (batch, prefix + max(nodes) + 1), device=device)
        cache = model(text[:, :prefix], use_cache=True, logits_to_keep=1).past_key_values
        seconds = {count: [] for count in nodes}
        for turn in range(repeats + 1):
            for count in order.sample(list(nodes), len(nodes)):
                took = one(model, text[:, prefix : prefix + count + 1], cache, device)
                cache.crop(-(count + 1))
                if turn:  # the first turn warms up
                    seconds[count].append(took)
        found |= {(batch, count): 1000 * statistics.median(own) for count, own in seconds.items()}
    return found


def one(model, tokens: torch.Tensor, cache, device: str) -> float:
    """Seconds of a forward pass with its greedy choice, from idle device to idle device."""
    synchronise(device)
    start = time.perf_counter()
    model(tokens, past_key_values=cache, use_cache=True).logits.argmax(-1)
    synchronise(device)
    return time.perf_counter() - start


def synchronise(device: str) -> None:
    """Waits for a GPU."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
