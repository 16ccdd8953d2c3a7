"""What Triton's interpreter needs."""


def let_ranges_be_computed() -> None:
    """Triton 3.6's interpreter turns an array of one number into that number in a way that numpy has given up."""
    from triton.runtime import interpreter

    usual = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: object) -> None:
        usual(tensor, scope)
        tensor.__index__ = lambda self: self.handle.data.item()

    interpreter._patch_lang_tensor = patched
