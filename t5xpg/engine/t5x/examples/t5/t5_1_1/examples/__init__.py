"""Gin files; a package so that gin can include them by name."""
