"""Times what a round costs where a target is served: `python measure_served.py TARGET [--drafter D] > theirs.csv`.

It needs torch and transformers alone, so that the file can be copied to that machine. A check of n drafted tokens is
one forward pass over n + 1 tokens per sequence that follow a cached text; all numbers of tokens are timed in shuffled
turns. The tokens are a text's, from another place on for each sequence: a mixture of experts routes random tokens
otherwise. The output is a table of costs, as `served` reads it: batch, nodes, check_ms, draft_ms.
"""

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NODES = (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64)  # both sides of the steps that a check's cost may have
TEXT = """\
The ferry leaves the north pier at seven, and on most mornings the same eleven people are on it. The baker sits by the
window with her ledger. Two brothers who repair pumps for the water company share tea and argue about football.
A teacher marks homework until the swell makes her stop. Nobody planned this company, but it has rules: the seat next to
the heater belongs to whoever coughs, and nobody speaks before the lighthouse is out of sight.

Last winter the timetable changed, and the passengers wrote a letter. It had three points. First, the later boat missed
the bus to the hospital by four minutes. Second, the harbour office had asked the hotels, but not the people who pay for
a season ticket. Third, the old timetable had cost nothing to keep. The office answered within a week, which surprised
everyone: the boat would leave at seven again, and the bus would wait if the fog was thick.

How do you find out whether a boat is usually late? Collect the delays of a month, sort them, and look at the middle
one, since a single storm moves the mean but hardly the median:

def median(delays):
    # the middle of the delays, or the mean of the two middle ones
    ordered = sorted(delays)
    half = len(ordered) // 2
    if not ordered:
        raise ValueError("there is no delay; record at least one crossing")
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


for month, delays in crossings.items():
    late = [delay for delay in delays if delay > 5]
    print(f"{month}: median {median(delays):.1f} minutes, {len(late)} of {len(delays)} boats were late")

In January the median was 2.5 minutes, and 3 of 62 boats were late. In February, with the new timetable, it was 6.0, and
34 of 56 were late. The teacher put both numbers on a card and pinned it beside the door, where it still hangs.
"""


def main() -> None:
    """Reads the command line, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", help="a folder, or a name of the Hugging Face hub")
    parser.add_argument("--drafter", help="a draft model, for the column draft_ms")
    parser.add_argument("--batches", default="1,8", help="batch sizes, with commas (default: 1,8)")
    parser.add_argument("--text", type=read, default=TEXT, metavar="FILE",
                        help="a file of text such as the model writes (default: a text of this script)")
    parser.add_argument("--prefix", type=int, default=512, help="cached tokens per sequence (default: 512)")
    parser.add_argument("--repeats", type=int, default=15, help="timed passes of each number (default: 15)")
    parser.add_argument("--dtype", default="auto", help="number format, as torch names it (default: the model's own)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    common = dict(dtype=args.dtype if args.dtype == "auto" else getattr(torch, args.dtype), device=args.device,
                  batches=[int(batch) for batch in args.batches.split(",")], prefix=args.prefix, repeats=args.repeats,
                  text=args.text)
    target = times(args.target, nodes=NODES, **common)
    write(target, times(args.drafter, nodes=(0,), **common) if args.drafter else {}, sys.stdout)


def read(path: str) -> str:
    """The text of a file, as an argument of the command line."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read ({error}); give a file of text in UTF-8") from None


def write(target: dict, drafter: dict, file) -> None:
    """The table; target, drafter: milliseconds by (batch, nodes), for the drafter of its plain steps."""
    print("batch,nodes,check_ms" + (",draft_ms" if drafter else ""), file=file)
    for (batch, nodes), check in target.items():
        print(batch, nodes, f"{check:.4f}", *([f"{drafter[batch, 0]:.4f}"] if drafter else []), sep=",", file=file)


@torch.inference_mode()
def times(name: str, *, dtype, device: str, batches, nodes, prefix: int, repeats: int,
          text: str = TEXT) -> dict[tuple[int, int], float]:
    """Median milliseconds of a forward pass with its greedy choice, by (batch, nodes). The first turn is not counted.

    SystemExit names a cache that cannot be cropped.
    """
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype).to(device).eval()
    tokenizer, medians, order = AutoTokenizer.from_pretrained(name), {}, random.Random(0)
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    for batch in batches:
        tokens = rows(tokenizer, text, batch, prefix + max(nodes) + 1).to(device)
        cache = getattr(model(tokens[:, :prefix], use_cache=True, logits_to_keep=1), "past_key_values", None)
        check_crop(name, model, tokens[:, prefix:], cache)
        seconds = {count: [] for count in nodes}
        for _ in range(repeats + 1):
            for count in order.sample(list(nodes), len(nodes)):
                wait()  # from idle device to idle device
                start = time.perf_counter()
                model(tokens[:, prefix : prefix + count + 1], past_key_values=cache, use_cache=True).logits.argmax(-1)
                wait()
                seconds[count].append(time.perf_counter() - start)
                cache.crop(-(count + 1))
        medians |= {(batch, count): 1000 * statistics.median(times[1:]) for count, times in seconds.items()}
    return medians


def rows(tokenizer, text: str, batch: int, length: int) -> torch.Tensor:
    """int64[batch, length]: the text's tokens again and again, each row from another place on."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not ids:
        raise SystemExit("the text has no token; give a file with a few hundred words")
    starts = [row * len(ids) // batch for row in range(batch)]
    return torch.tensor([[ids[(start + place) % len(ids)] for place in range(length)] for start in starts])


def check_crop(name: str, model, block: torch.Tensor, cache) -> None:
    """SystemExit, with the kinds of its layers, for a cache that `crop` does not put back as it was before a block."""
    if hasattr(cache, "activate_past_recording"):
        cache.activate_past_recording()  # else a sliding window drops what `crop` would need
    layers = getattr(cache, "layers", [])
    kinds = {type(layer).__name__ for layer in layers if not getattr(layer, "is_croppable", True)}
    try:
        logits = []
        for _ in range(2):
            logits.append(model(block, past_key_values=cache, use_cache=True).logits.float())
            cache.crop(-block.shape[1])
        if not kinds and torch.allclose(*logits, rtol=0, atol=0.01 * logits[0].abs().max().item()):
            return
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        pass
    names = ", ".join(sorted(kinds or {type(layer).__name__ for layer in layers})) or type(cache).__name__
    raise SystemExit(f"the cache of {name} ({names}) cannot be cropped to the text again, so that a check cannot be "
                     "repeated; time its checks in the engine that serves it, and write the table by hand")


if __name__ == "__main__":
    main()
