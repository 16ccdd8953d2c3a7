"""Speed and memory of recurrify beside transformers, a naive loop and other packages."""
