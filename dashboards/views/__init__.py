"""What pages show, as plain values: chosen, ordered and named, without a browser in sight."""
