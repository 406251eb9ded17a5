"""Pictures of surfaces, lines and spectra."""
