"""Checks the user's code: does a `collate_fn` mix examples, and does a forward remember any?

kinds        tells Python objects apart
kept_values  values of objects, kept to compare with later
memory       everything that Python code can remember
held         containers and tensors, compared and put back
state        the state of a model around a forward
padding      how the rows of a batch are padded
forms        whether all examples of a batch have one form
collate      whether each row of a batch depends on its own example only
"""
