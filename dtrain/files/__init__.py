"""Files: read within bounds, written whole, and what stands in them checked."""
