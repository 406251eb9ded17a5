"""Data of any kind into fixed batches: what a batch holds, and which of its positions count."""
