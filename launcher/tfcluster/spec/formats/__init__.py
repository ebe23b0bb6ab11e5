"""Readers of specs in other formats than JSON: YAML, TOML."""
