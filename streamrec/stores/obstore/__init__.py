"""The store over obstore, an optional reader in Rust."""
