"""Published numbers stand beside those of a run with the same method, and beside no others."""

import numpy as np
import pandas as pd

from lib.lab import provenance
from lib.lab.findings import Results
from lib.studies import published
from lib.studies.acceptance import summary
from lib.studies.report import Ask

REFERENCE = provenance.HOME / "data" / "results" / "reference"


def test_each_measured_method_follows_its_published_rows_with_numbers_of_the_tables():
    run = Results(REFERENCE)
    ask = Ask.of(run)
    _, finding = published.report(run, ask, np.random.default_rng(0))
    table = finding.table.reset_index()
    assert set(published.FAMILIES) | set(published.DRAFTERS) <= {claim.method for claim in published.CLAIMS}
    for method, rows in table.groupby("method", sort=False):
        ours = rows["from"].eq("this run").tolist()
        assert ours == sorted(ours), f"{method}: a published row follows one of this run"
    rows = summary.headline(summary.clean(run["acceptance"]), ask.pair)
    chain = rows[(rows["family"] == "chain") & (rows["budget"] == 16)]
    tau = 1 + chain["accepted"].sum() / chain["rounds"].sum()
    own = table[(table["method"] == "chain") & (table["from"] == "this run")].iloc[0]
    assert f"{tau:.2f} (16)" in own["τ (budget)"] and ask.pair in own["setting"]


def test_a_run_that_measured_nothing_has_published_rows_alone():
    table = published.beside(pd.DataFrame({"method": []})).table
    assert len(table) == len(published.CLAIMS) and "this run" not in table.index.get_level_values("from")
