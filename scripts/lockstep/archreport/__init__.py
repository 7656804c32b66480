"""The cross-architecture report: what differs between an image's architectures, and whether that is declared."""
