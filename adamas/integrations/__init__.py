"""Integrations: per-example losses for Hugging Face models, and private training in other libraries' loops.

Import a module by its name, such as `adamas.integrations.losses`. `transformers` and `lightning` need the
extra of that name; `losses` and `opacus` need none.
"""
