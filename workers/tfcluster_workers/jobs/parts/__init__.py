"""The parts that the example jobs share: options, models, epochs, checkpoints, results."""
