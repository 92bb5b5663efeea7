"""Other libraries: losses of each example for their models, and their training loops.

Each module is imported by its name, such as `adamas.integrations.losses`. A module for the loop of a library
needs the extra of that library; the losses need none.
"""
