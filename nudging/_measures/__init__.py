"""What a credit is worth, block by block: one file per verb."""
