"""Encoding recurrence into transformers: Transformer-XL, RSA-XL and the Block-Recurrent Transformer."""
