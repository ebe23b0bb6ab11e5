"""The example jobs: small TensorFlow programs to run as they are, to copy and to change.

`all_reduce` is none of them: `tfcluster doctor --deep` runs it.
"""
