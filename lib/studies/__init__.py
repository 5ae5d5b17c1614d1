"""One folder per study: `measure` makes the rows, `findings` says what they mean, `figures` draws them."""

STUDIES = ("acceptance", "drafters", "rules", "attention", "served")  # in the order of the report
