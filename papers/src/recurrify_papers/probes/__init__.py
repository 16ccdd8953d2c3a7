"""Small models trained on probes of symbols, and tested at more distances than they were trained on."""
