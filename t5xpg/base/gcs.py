"""gcsfs for gs://, where a folder counts as removed although the answer that said so was lost."""

from __future__ import annotations

import fsspec
import fsspec.asyn
import gcsfs


class GCSFileSystem(gcsfs.GCSFileSystem):
    """gcsfs's, but for `rm`.

    gcsfs asks again where an answer was lost; the object is gone by then, and the second answer is 404. Where this
    happens to all that a folder holds (one batch on Google's servers, one object of a checkpoint that was only begun),
    gcsfs raises FileNotFoundError after it has removed everything. Orbax's clearing goes through here too, by epath.
    """

    async def _rm(self, path, recursive=False, **settings):
        """Removes a path, or a list of them; raises FileNotFoundError where a folder's listing is empty at first."""
        listed = recursive and await self._expand_path(path, recursive=True)
        try:
            return await super()._rm(path, recursive=recursive, **settings)
        except FileNotFoundError:
            if not listed:
                raise
            return []

    rm = fsspec.asyn.sync_wrapper(_rm)  # gcsfs's own calls gcsfs's _rm


def register() -> None:
    """Makes fsspec use this class, whoever asks it for gs:// from now on."""
    for protocol in ("gs", "gcs"):
        fsspec.register_implementation(protocol, GCSFileSystem, clobber=True)
