"""The report of a run: statistics of held-out examples, figures of them, one page of HTML."""
