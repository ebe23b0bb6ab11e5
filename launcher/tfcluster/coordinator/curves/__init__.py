"""The curves of a run: its tasks' TensorBoard files, copied to its folder and served."""
