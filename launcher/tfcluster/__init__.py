"""tfcluster launches multi-worker TensorFlow jobs: this half never imports TensorFlow."""

__version__ = "0.1.0"
