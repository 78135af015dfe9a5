"""Model shapes, and decoders taken apart into streamable parts."""
