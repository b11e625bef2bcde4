"""gcp-storage-emulator with what of the real service gcsfs and TensorStore rely on: `python gcs_server.py start …`.

The emulator sends no `x-goog-generation` with an object and does not read ifGenerationMatch, by which TensorStore
commits an OCDBT manifest that nobody else has written since it was read, and gcsfs creates what is not there yet. A
part of an upload that is sent again, because the first answer was lost, is an error; the service ignores bytes that it
has, and answers as before.
"""

import json
import sys
from http import HTTPStatus

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects
from gcp_storage_emulator.storage import Storage


def generation(storage, bucket: str, name: str) -> str:
    """Returns an object's generation, "0" where there is none."""
    try:
        return storage.get_file_obj(bucket, name)["generation"]
    except NotFound:
        return "0"


def download(request, response, storage, *args, original=objects.download, **kwargs) -> None:
    found = generation(storage, request.params["bucket_name"], request.params["object_id"])
    original(request, response, storage, *args, **kwargs)
    if found != "0":
        response["x-goog-generation"] = found


def insert(request, response, storage, *args, original=objects.insert, **kwargs) -> None:
    wanted, name = request.query.get("ifGenerationMatch"), name_of(request)
    if wanted and name and wanted[0] != generation(storage, request.params["bucket_name"], name):
        response.status = HTTPStatus.PRECONDITION_FAILED
        response.json({"error": {"code": 412, "message": "conditionNotMet"}})
    else:
        original(request, response, storage, *args, **kwargs)


def upload_partial(request, response, storage, *args, original=objects.upload_partial, **kwargs) -> None:
    upload = request.query["upload_id"][0]
    original(request, response, storage, *args, **kwargs)
    if response.status is HTTPStatus.OK:
        finished[upload] = response._content
    elif response.status is HTTPStatus.NOT_FOUND and upload in finished:
        response.status = HTTPStatus.OK
        response.json(json.loads(finished[upload]))


def add_part(storage, upload, content, total_size=None, expected_start=None, original=Storage.add_to_resumable_upload):
    if expected_start is not None and (known := storage.get_resumable_byte_count(upload) - expected_start) > 0:
        content, expected_start = content[known:], expected_start + known
    return original(storage, upload, content, total_size, expected_start)


def name_of(request) -> str | None:
    """Returns the name of the object that an upload is to write; the request's body is read here in any case."""
    data = request.data
    named = request.query.get("name", [None])[0]
    return named or ((data.get("meta") or data).get("name") if isinstance(data, dict) else None)


finished: dict[str, str] = {}  # {upload: what it was answered at its end}
objects.download, objects.insert, objects.upload_partial = download, insert, upload_partial
Storage.add_to_resumable_upload = add_part

if __name__ == "__main__":
    from gcp_storage_emulator.__main__ import main

    sys.exit(main())
