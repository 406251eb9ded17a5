"""Pictures of results, one file for each instrument: which there are, by the verb that made it."""
