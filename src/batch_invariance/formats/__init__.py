"""Pure codecs: bytes in, bytes out. No file is opened here."""
