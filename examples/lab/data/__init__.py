"""Images and text: loaded, chosen, augmented, batched."""
