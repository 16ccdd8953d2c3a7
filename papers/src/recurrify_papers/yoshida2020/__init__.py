""" "Adding Recurrence to Pretrained Transformers", Yoshida, Ettinger and Gimpel 2020."""
