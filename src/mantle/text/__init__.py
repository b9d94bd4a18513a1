"""Text to tokens and back: chat templates, tokenisers, incremental detokenising, stop strings."""
