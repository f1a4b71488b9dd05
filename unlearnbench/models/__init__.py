"""Models: loaded from a hub or folder, or built and trained here."""
