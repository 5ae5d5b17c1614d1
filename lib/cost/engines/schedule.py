"""One setting of vLLM for all batch sizes, where they differ in the length of a method's chain."""

from collections.abc import Mapping, Sequence

from lib.cost.engines.registry import BY_BATCH, SCHEDULED
from lib.cost.engines.writers import CONFIG, NUM_TOKENS, SCHEDULE, config_line, config_of

Row = Mapping[str, str]


def scheduled(by_batch: Mapping[int, Sequence[Row] | None]) -> dict[int, list[Row]]:
    """Rows of `registry.settings` by batch size, None for plain decoding; of vLLM those with a schedule in their place.

    A batch size stands for those up to the next one that was measured. Where the same method has other lengths at other
    batch sizes, or where plain decoding is recommended, its row at each batch size gives the length at all of them. A
    batch size with another method is left out: vLLM then keeps the length of the next smaller one.
    """
    found = {batch: list(rows or ()) for batch, rows in by_batch.items()}
    methods: dict[str, dict[int, int]] = {}
    for batch, _, config in _configs(found):
        methods.setdefault(_method(config), {})[batch] = config[NUM_TOKENS]
    plain = {batch: 0 for batch, rows in by_batch.items() if rows is None}
    for batch, at, config in list(_configs(found)):
        lengths = methods[_method(config)] | plain
        if len(set(lengths.values())) > 1:
            config |= {NUM_TOKENS: max(lengths.values()), SCHEDULE: ranges(lengths, sorted(by_batch))}
            found[batch][at] = {**found[batch][at], "setting": config_line(config), "versions": BY_BATCH}
    return found


def ranges(lengths: Mapping[int, int], batches: Sequence[int]) -> list[list[int]]:
    """[first batch, last batch, tokens] in ascending order, both ends inclusive, the first from 1 on. lengths: by some
    of the batch sizes, which ascend.
    """
    found: list[list[int]] = []
    for first, following in zip(batches, [*batches[1:], batches[-1] + 1]):
        if first not in lengths:
            continue
        if found and found[-1][1:] == [first - 1, lengths[first]]:
            found[-1][1] = following - 1
        else:
            found.append([first if found else 1, following - 1, lengths[first]])
    return found


def _configs(found: Mapping[int, Sequence[Row]]):
    """Batch size, index and settings of each row that can have a schedule."""
    for batch, rows in found.items():
        for at, row in enumerate(rows):
            config = config_of(row["setting"]) if row["setting"].startswith(f"--{CONFIG}") else {}
            if config.get("method") in SCHEDULED:
                yield batch, at, config


def _method(config: Mapping[str, object]) -> str:
    """What two settings have in common that differ in their lengths alone."""
    return str({name: value for name, value in config.items() if name not in (NUM_TOKENS, SCHEDULE)})
