"""What comes of a run: files, verdicts, statistics, and the page."""
