"""Why communication is exposed, and which collectives it belongs to."""
