"""The ground floor: errors, settings, files, commands, digests and units, without a word of the domain."""
