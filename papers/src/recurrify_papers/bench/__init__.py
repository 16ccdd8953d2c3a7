"""Speed and memory of recurrify compared with transformers, a naive loop and other packages."""
