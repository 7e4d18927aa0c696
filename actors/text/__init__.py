"""Text to token ids and back: tokenizers, chat templates, incremental decoding, stop strings."""
