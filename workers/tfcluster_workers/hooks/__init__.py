"""Hooks into TensorFlow, Keras and KerasTuner inside a task, which report, check and patch."""
