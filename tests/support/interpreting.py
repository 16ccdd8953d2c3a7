"""A fix for Triton's interpreter."""


def let_ranges_be_computed() -> None:
    """Triton 3.6's interpreter converts arrays of one number in a way that numpy no longer supports."""
    from triton.runtime import interpreter

    usual = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: object) -> None:
        usual(tensor, scope)
        tensor.__index__ = lambda self: self.handle.data.item()

    interpreter._patch_lang_tensor = patched
