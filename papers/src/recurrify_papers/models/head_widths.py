"""The width of an attention head, where a configuration leaves it to the model's width."""

from recurrify.errors import UserError


class HeadWidths:
    """For configurations with a `width`, `heads` and a `head_width`, which is a number once they are made."""

    width: int
    heads: int
    head_width: int | None

    def settle_head_width(self) -> None:
        """None becomes the width's equal share; a number stays: published models have heads of any width."""
        if self.head_width is None:
            if self.width % self.heads:
                raise UserError(
                    f"`heads` must divide `width` unless a `head_width` is given: got width={self.width}, "
                    f"heads={self.heads}; choose heads that divide it, such as heads={self._nearest_heads()}, or give "
                    f"a `head_width`, such as head_width={max(1, self.width // self.heads)}."
                )
            # Settled for good, so that whoever saves the configuration saves the number.
            object.__setattr__(self, "head_width", self.width // self.heads)
        elif self.head_width < 1:
            raise UserError(f"`head_width` must be at least 1, or None for width / heads: got {self.head_width}.")

    @property
    def each_head(self) -> int:
        """The width of a head."""
        assert self.head_width is not None, "settled when the configuration was made"
        return self.head_width

    @property
    def all_heads(self) -> int:
        """The width of all heads together."""
        return self.heads * self.each_head

    def _nearest_heads(self) -> int:
        divisors = [number for number in range(1, self.width + 1) if self.width % number == 0]
        return min(divisors, key=lambda number: abs(number - self.heads))
