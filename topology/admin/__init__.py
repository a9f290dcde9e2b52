"""The admin interface over HTTP: one file for each kind of thing that it manages."""
