"""Makes stock Keras 3 train on several workers."""
