"""What listens to a backward pass: by parameter, by activation, by shard."""
