"""Patches stock Keras 3 so that it trains on several workers."""
