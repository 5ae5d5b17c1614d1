"""Measurements on a GPU that fit a few minutes each, without notebooks:
`python -m lib.measure.gpu costs --model smollm2-1.7b --out FOLDER`.

costs: rounds of a size at several batches, by nodes; with them the bandwidth of reading as many bytes as the weights
have, and how many times a plain round would read the weights so. attention: tree attention beside its alternatives and
the roofline. Random weights serve, since costs do not depend on them. Tables go to FOLDER/tables, of costs one
measurement after another, and FOLDER/run.json says what made them. `--tiny` rehearses on a CPU.
"""

import argparse
import json
import time
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import pandas as pd
import torch

from lib.cost import calibration
from lib.cost.on_gpus import sizes
from lib.cost.round_cost import PLAIN, RULER
from lib.decoding import loop
from lib.drafters.controls import RandomDrafter
from lib.forward.load import load_pair
from lib.lab import atomic_file, provenance, tables
from lib.lab.chapter import Store
from lib.measure import attention
from lib.models.checks import DTYPES
from lib.models.registry import RANDOM

SECONDS = 20.0  # of the rounds of a batch
GRID = dict(batches=(1, 16), prefixes=(2048, 8192, 65536), drafts=(1, 8, 16, 64), dtypes=("bfloat16",), query_heads=32,
            kv_heads=8, head_dim=128, shape="kary:2", repeats=50, cell_seconds=1.0, memory_limit_gb=20.0, compiled=True)
TINY = dict(batches=(1,), prefixes=(64,), drafts=(4,), dtypes=("float32",), query_heads=4, kv_heads=2, head_dim=16,
            shape="kary:2", repeats=3, cell_seconds=0.05, memory_limit_gb=1.0, compiled=False)


def costs(store: Store, *, model: str, batches: list[int], prefix: int, most: int, seconds: float, dtype: str,
          forward: str, device: str) -> None:
    """The tables "costs", with random draft tokens, and "gpu_steps" of one size; rows of other sizes stay."""
    pair = load_pair(RANDOM + model, dtype=dtype, device=device)
    order = torch.Generator().manual_seed(0)
    vocabulary = pair.target.config.get_text_config().vocab_size
    text = torch.randint(vocabulary, (max(batches) * prefix,), generator=order)
    rows = calibration.calibrate(
        pair, [text], batches=batches, prefix=prefix, most=most, seconds=seconds, generator=order,
        drafter=RandomDrafter(vocabulary, order), generate=partial(loop.generate, forward=forward))
    read = sizes(model)[0] * DTYPES[dtype].itemsize
    bandwidth = attention.bytes_per_second(device, seconds=0.5, size=read)
    steps = rows[rows["shape"] == PLAIN][["target", "dtype", "batch", "prefix", "round_ms"]].assign(
        forward=forward, weight_bytes=read, bandwidth=bandwidth)
    steps["reads"] = steps["round_ms"] / 1000 * bandwidth / read
    for name, added in {"costs": rows.assign(drafter=RULER), "gpu_steps": steps}.items():
        if tables.exists(store.folder, name):
            known = tables.read(store.folder, name).drop(columns=tables.FINGERPRINT)
            added = pd.concat([known[known["target"] != pair.target_name], added], ignore_index=True)
        store.write(name, added)
    print(steps.to_string(index=False))


def main() -> None:
    """Reads the command line, measures, and records what made the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("costs", "attention"))
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="such as data/results/h100")
    parser.add_argument("--model", default="smollm2-135m", help="a size of lib.models.registry.SIZES, or SIZE@LAYERS")
    parser.add_argument("--batches", default="1,4,16,64", help="batch sizes, with commas")
    parser.add_argument("--forward", default="auto", help="the forward pass by its name")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="two layers, two batch sizes, few nodes: a rehearsal")
    given = parser.parse_args()
    if given.what == "attention":
        settings, measure = dict(TINY if given.tiny else GRID, seed=0), attention.measure
    else:
        settings = dict(model=given.model, batches=[int(batch) for batch in given.batches.split(",")], prefix=512,
                        most=128, seconds=SECONDS, dtype="bfloat16", forward=given.forward)
        tiny = dict(model="smollm2-135m@1", batches=[1, 2], prefix=8, most=2, seconds=0.1, dtype="float32")
        settings, measure = settings | (tiny if given.tiny else {}), costs
    mark, start = provenance.fingerprint(device=given.device, parameters=settings), time.perf_counter()
    measure(Store(given.out, mark), device=given.device, **settings)
    path, machine = given.out / "run.json", provenance.machine(given.device)
    record = provenance.read(given.out) if path.exists() else {"stages": {}, "parameters": {}}
    name = " ".join(filter(None, ("gpu", given.what, settings.get("model"))))
    written = {file.name: provenance.file_digest(file) for file in sorted((given.out / "tables").iterdir())}
    record["stages"][name] = dict(
        fingerprint=mark, seconds=round(time.perf_counter() - start, 1), machine=machine, tables=written,
        finished=datetime.now(timezone.utc).isoformat(timespec="seconds"), **provenance.commit())
    record["parameters"][name] = settings
    record |= {"versions": provenance.versions(), "machine": machine}
    atomic_file.replace(path, (json.dumps(record, indent=2, default=str) + "\n").encode())


if __name__ == "__main__":
    main()
