"""The thesis on recurrent GPT-2."""
