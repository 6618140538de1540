"""Examples and SequenceExamples: feature specs, parsing into columns, and encoding."""
