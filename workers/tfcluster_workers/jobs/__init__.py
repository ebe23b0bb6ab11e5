"""The example jobs: small TensorFlow programs to run as they are, to copy and to change."""
