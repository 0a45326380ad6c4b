"""Commands beside training: compare, ui, sync, checkpoint, data, evaluate."""
