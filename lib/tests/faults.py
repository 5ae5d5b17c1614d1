"""Planted faults that the tests find: `python -m lib.tests.faults [PART OF A NAME ...]`.

Each row changes one line of a copy of `lib` and runs the tests of its folder, which have to fail. It prints the faults
that no test found.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HOME = Path(__file__).parents[2]


class Fault(NamedTuple):
    """A change of a file of `lib` from one text, which stands there once, to another; `tests` have to notice it."""

    file: str
    before: str
    after: str
    tests: str


FAULTS = (
    # A draft tree and its shapes
    Fault("trees/tree.py", "mask[node] |= mask[self.parents[node]]", "mask[node] |= mask[ROOT]", "trees"),
    Fault("trees/tree.py", "depth[node] = depth[self.parents[node]] + 1", "depth[node] = depth[node - 1] + 1", "trees"),
    Fault("trees/tree.py", "(parents >= np.arange(len(parents)))", "(parents > np.arange(len(parents)))", "trees"),
    Fault("trees/tree.py", "rank.append(choice[-1])", "rank.append(choice[0])", "trees"),
    Fault("trees/shapes.py", "missing = budget + 1 - len(parents)", "missing = budget + 2 - len(parents)", "trees"),
    Fault("trees/shapes.py", "acceptance[branch - 1] * below[1:size]", "acceptance[0] * below[1:size]", "trees"),
    Fault("trees/growth.py", "(self.reach[nodes, None] * probs).ravel()", "probs.ravel()", "trees"),
    Fault("trees/growth.py", "full = len(candidates.reach) > self.budget", "full = False", "trees"),
    Fault("trees/growth.py", "growing = candidates.best(self.budget - is_full)", "growing = candidates.best(2)",
          "trees"),
    # Verification rules
    Fault("verify/rules.py", "p = _normalised(_excess(p, q), p)  # p <- norm (p - q)+", "pass", "verify"),
    Fault("verify/rules.py", "    return without(draft.proposal_probs()[node].to(p), draft.tokens_of(earlier))",
          "    return draft.proposal_probs()[node].to(p)", "verify"),
    Fault("verify/rules.py", "return mass / total if total > 0 else otherwise", "return torch.softmax(mass, 0)",
          "verify"),
    Fault("verify/rules.py", "w[node] = _odds(excess, w[node])", "w[node] = float(excess.sum())", "verify"),
    Fault("verify/rules.py", "accepted = i  # the last", "accepted = accepted or i  # the last", "verify"),
    Fault("verify/rules.py", "_ratio(p, q, draft.token_list[child]) / rho", "_ratio(p, q, draft.token_list[child])",
          "verify"),
    Fault("verify/rules.py", "return accepted, draws.categorical(rest)",
          "return accepted, draws.categorical(target_probs[node])", "verify"),
    Fault("verify/rules.py", "q = q.to(p)\n            if draws.uniform() <",
          "q, number = q.to(p), locals().get('number') or draws.uniform()\n            if number <", "verify"),
    Fault("verify/draft.py", "for _ in range(int(counts[child]))", "for _ in range(1)", "verify"),
    Fault("verify/draft.py", "[(child, probs[node]) for probs,", "[(child, shares[0][0][node]) for _,", "verify"),
    # Tree attention and kernels
    Fault("attention/masks.py", "(position > count[..., -1:] - 1 - window)",
          "(position >= count[..., -1:] - 1 - window)", "attention"),
    Fault("attention/masks.py", "return slots[pending:, None] >= slots", "return slots[pending:, None] > slots",
          "forward/test_passes.py"),
    Fault("attention/backends.py", "[..., longest - length:]", "[..., :length + tree_keys]", "attention"),
    Fault("attention/operator.py", "(lse - sinks", "(lse + sinks", "attention"),
    Fault("kernels/onepass.cpp", "return Item{b, head % c.kv_heads, first", "return Item{b, 0, first", "attention"),
    # Forward passes and the cache
    Fault("forward/passes.py", "cap * (logits / cap).tanh()", "logits", "decoding/test_families.py"),
    Fault("forward/reduced.py", "whole.index_copy_(-1, self.tokens, values)",
          "whole.index_copy_(-1, self.tokens.flip(0), values)", "drafters/test_language_model.py"),
    Fault("models/cache.py", "(row, length + node, length + depth)", "(row, length + depth, length + node)",
          "models/test_cache.py"),
    # Models' files
    Fault("models/gguf.py", ".swapaxes(1, 2)", "", "models/test_gguf.py"),
    Fault("models/gguf.py", "dequantised(tensor) - 1", "dequantised(tensor)", "models/test_gguf.py"),
    # Drafters
    Fault("drafters/text_index.py", "in reversed(self.ends.get(tuple(self.tokens[-n:]), ()))",
          "in self.ends.get(tuple(self.tokens[-n:]), ())", "drafters/test_text_drafters.py"),
    Fault("drafters/text_index.py", "State(dict(match.steps),", "State(match.steps,", "drafters/test_text_drafters.py"),
    Fault("drafters/levels.py", "counts - 1, visible)", "counts, visible)", "drafters/test_language_model.py"),
    Fault("drafters/levels.py", "1 + places.get(int(tree.parents[node]), -1)", "places.get(int(tree.parents[node]), 0)",
          "drafters/test_heads.py"),
    Fault("drafters/adaptive.py", "(mean > 0.8) - (mean < 0.5)", "(mean >= 0.8) - (mean < 0.5)",
          "drafters/test_wrappers.py"),
    Fault("drafters/combined.py", "text.matched() >= self.enough", "text.matched() > self.enough",
          "drafters/test_wrappers.py"),
    Fault("drafters/merged.py", "key=lambda path: tuple(draft.tree.rank[list(path)])", "key=len",
          "drafters/test_wrappers.py"),
    # The loop
    Fault("decoding/loop.py", "fits := len(written) < self.limit", "fits := len(written) <= self.limit", "decoding"),
    Fault("decoding/loop.py", "self.drafter.select(running)", "self.drafter.select(running[::-1])",
          "decoding drafters/test_contract.py"),
    # Replay and logs
    Fault("replay/exact.py", "trace.starts(tree.max_depth)[rows]", "trace.starts(0)[rows]", "replay"),
    Fault("replay/exact.py", "+ all_starts.accepted, []", "+ 0 * all_starts.accepted, []", "replay"),
    Fault("replay/trace.py", "np.maximum(self.ends - depth, 0)", "np.maximum(self.ends - depth - 1, 0)", "replay"),
    Fault("replay/rank_paths.py", "(-trie.count(child), depth + 1,", "(-trie.count(child), -depth - 1,", "replay"),
    Fault("replay/expectation.py", "np.minimum.accumulate(", "np.maximum.accumulate(", "replay/test_expectation.py"),
    Fault("replay/logs.py", "reason == EITHER and not at_string", "reason == EITHER", "replay/test_logs.py"),
    # Training
    Fault("training/loop.py", "DECAY**depth * values", "values", "training"),
    Fault("training/loop.py", "values = entropy(logits, teacher[:, at]",
          "values = entropy(logits, teacher[:, positions]", "training"),
)


def found(fault: Fault) -> bool:
    """Whether the tests fail on a copy of `lib` with the fault."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(HOME / "lib", copy / "lib", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("data", "notebooks", ".pytest.ini", "README.md", "requirements.txt", "figures"):
            (copy / name).symlink_to(HOME / name)
        path = copy / "lib" / fault.file
        source = path.read_text(encoding="utf-8")
        if source.count(fault.before) != 1:
            raise ValueError(f"{fault.before!r} stands {source.count(fault.before)} times in {fault.file}; name a text "
                             "that stands there once")
        path.write_text(source.replace(fault.before, fault.after), encoding="utf-8")
        tests = [copy / "lib" / "tests" / part for part in fault.tests.split()]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-c", copy / ".pytest.ini", "--rootdir", copy, *tests]
        done = subprocess.run(command, cwd=copy, env=os.environ | {"PYTHONPATH": folder}, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}")
        return done.returncode == 1


def main(parts: list[str]) -> int:
    """Tries the faults whose file or text has one of the parts; all without parts."""
    chosen = [fault for fault in FAULTS if not parts or any(part in fault.file + fault.before for part in parts)]
    missed = []
    for fault in chosen:
        hit = found(fault)
        found_or_not = "found " if hit else "MISSED"
        print(found_or_not, fault.file, "|", fault.before.strip(), "->", fault.after.strip(), flush=True)
        missed += [] if hit else [fault]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults are found")
    return len(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
