"""Question answering: Table 3 of the paper."""
