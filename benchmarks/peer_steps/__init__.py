"""One training step, in several libraries: what `peers.py` measures, checks and profiles.

Each workload and method is named in `catalog.py`. To add a library, write a subclass of `methods.base.Method` and give it a
row in `catalog.METHODS`. To add a workload, write a function in `workloads.py` and give it a row in `catalog.WORKLOADS`.
"""
