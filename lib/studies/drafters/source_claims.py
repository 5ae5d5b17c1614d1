"""What a weblog and papers claim of drafters, to be laid beside what is measured."""

import pandas as pd

# The tables of the weblog that started this study.
# task type -> (this study's kind of text, speedup with EAGLE, speedup with n-gram look-up)
_BY_TASK = {"code": ("code", "2-3", "1.5-2"), "translation": ("translation", "2", "1.2"),
            "summary": ("summary", "1.8", "1.1"), "creative writing": ("story", "1.5", "1.0")}
# drafted tokens -> (acceptance rate, speedup, share of the target's calls saved)
_BY_LENGTH = {3: (0.85, 1.8, 0.45), 5: (0.78, 2.1, 0.58), 8: (0.70, 2.3, 0.67), 12: (0.62, 2.1, 0.72)}
# parameters of target and drafter -> (acceptance rate, speedup, memory beyond the target's)
_BY_PAIR = {"7B/160M": (0.78, 2.1, 0.12), "70B/1B": (0.65, 1.5, 0.18)}

# Papers: which drafter is accepted more than which, on their models; "model" is a language model.
ORDERS = (("eagle3", "eagle", "Li et al. 2025, EAGLE-3"), ("eagle", "medusa", "Li et al. 2024, EAGLE"),
          ("medusa", "lookup", "Xia et al. 2024, Spec-Bench"), ("sam", "lookup", "Hu et al. 2024, SAM-Decoding"),
          ("recycling", "lookup", "Luo et al. 2024, token recycling"),
          ("merged", "model", "Miao et al. 2024, SpecInfer"),
          ("combined", "model", "Hu et al. 2024, SAM-Decoding"))


def by_task() -> pd.DataFrame:
    """task, kind (the study's own), claimed EAGLE and claimed look-up: speedups in words."""
    return pd.DataFrame([(task, *values) for task, values in _BY_TASK.items()],
                        columns=["task", "kind", "claimed EAGLE", "claimed look-up"])


def by_length() -> pd.DataFrame:
    """Draft length, and claimed acceptance rate, speedup and share of target calls saved."""
    return pd.DataFrame([(length, *values) for length, values in _BY_LENGTH.items()],
                        columns=["length", "claimed rate", "claimed speedup", "claimed calls saved"])


def by_pair() -> pd.DataFrame:
    """Pair, and claimed acceptance rate, speedup and share of memory added."""
    return pd.DataFrame([(pair, *values) for pair, values in _BY_PAIR.items()],
                        columns=["pair", "acceptance rate", "speedup", "memory added"])
