"""One folder per study: `measure` makes the rows, `findings` says what they mean, `figures` draws them."""

<<<<<<< HEAD
STUDIES = ("acceptance", "drafters", "rules", "attention", "served")  # in the order of the report
=======
STUDIES = ("acceptance", "advice", "drafters", "rules", "speed", "attention")  # in the order of the report
>>>>>>> drafters
