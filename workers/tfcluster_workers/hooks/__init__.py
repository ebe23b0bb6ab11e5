"""Hooks into TensorFlow, Keras and KerasTuner inside a task: they report and check."""
