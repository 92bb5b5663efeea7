"""Checks on the user's code: whether a `collate_fn` mixes examples, and what a forward remembers."""
