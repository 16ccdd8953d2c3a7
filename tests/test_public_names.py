"""What `import recurrify` shows."""

import recurrify


def test_only_what_is_for_users_is_listed() -> None:
    assert sorted(dir(recurrify)) == sorted(recurrify.__all__)
    assert all(hasattr(recurrify, name) for name in recurrify.__all__)
