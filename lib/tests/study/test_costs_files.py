"""Files of cost curves: every shipped one is read, and what cannot be a cost is refused with its line."""

import numpy as np
import pytest

from lib.study.costs_files import names, of_backends, read

HEAD = "backend,batch,method,nodes,ms\n"


@pytest.mark.parametrize("name", names())
def test_shipped_files_are_read_and_name_machine_and_source(name):
    rows = read(name)
    assert (rows[["machine", "source", "backend"]] != "").all(axis=None) and rows["machine"].nunique() == 1
    assert not rows.duplicated(["backend", "batch", "method", "shape"]).any()
    if name == "published-mi50":
        with pytest.raises(ValueError, match="lack a plain step or checks"):
            of_backends(rows)
        return
    for backend, costs in of_backends(rows).items():
        part = rows[rows["backend"] == backend]
        for batch, checks in part[part["method"] == "forced"].groupby("batch"):
            plain = part.loc[(part["method"] == "plain") & (part["batch"] == batch), "ms"].iloc[0]
            curve = 1000 * costs.check(batch, checks["nodes"].to_numpy())
            assert np.median(np.abs(curve / checks["ms"] - 1)) < 0.1, "a curve that never falls is near its points"
            assert 1000 * costs.plain(batch) == pytest.approx(plain, rel=0.25)


ROWS = [
    ("a,0,plain,0,5", "batch is '0'; give a whole number from 1 on"), ("a,x,plain,0,5", "batch is 'x'"),
    ("a,1,forced,1.5,5", "nodes is '1.5'; give a whole number from 0 on"), ("a,1,plain,3,5", "nodes is '3'; give 0"),
    ("a,1,forced,3,0", "ms is '0'; give milliseconds above 0"), ("a,1,forced,3,", "ms is ''")]


@pytest.mark.parametrize(("text", "message"), [
    *((f"{HEAD}{line}\n", f"mine.csv, line 2: {message}") for line, message in ROWS),
    (HEAD + "a,1,plain,0,5\na,1,model,4,5\n", r"one shape of the drafting of model \(a, batch 1\); give two"),
    ("batch,nodes,check_ms\n1,0,5\n", "lacks the column backend; it has batch, nodes, check_ms"),
    ("", "is no CSV table")])
def test_a_file_that_holds_no_costs_is_named(text, message, tmp_path):
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "mine.csv")
