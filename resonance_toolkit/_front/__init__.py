"""The front door: puts the instruments together. Loaded on first use, imported by nobody.

Rooms: `examine`, `page`, `monitor`, and `command`, which uses the other three. A public name has a
row in `resonance_toolkit.__init__`. Instruments come from the ground floor's loader, `from
resonance_toolkit import probes`, and of them only public names are used.
"""
