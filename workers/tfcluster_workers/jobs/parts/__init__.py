"""What the example jobs share: options, models, epochs, checkpoints."""
