"""Pretraining of base models: GPT-2, BERT and T5."""
