"""Reads what an offline run of W&B has written.

The file is a log of LevelDB's: after seven bytes, blocks of 32 KiB with pieces of records, each
with a checksum, its length and its place (whole, first, middle, last). A record is a message of
W&B's own protocol.
"""

import json
import struct
import time
import zlib

_HEADER = b":W&B\xe1\xbe\x00"
_BLOCK = 32768
_PIECE = struct.Struct("<IHB")
_WHOLE, _LAST = 1, 4


def read_rows(path, seconds=600):
    """The rows of a run's history, as dicts, once the run's own process has written its end."""
    from wandb.proto import wandb_internal_pb2 as protocol

    deadline = time.monotonic() + seconds
    while True:
        records = []
        for content in _records(path.read_bytes()):
            records.append(protocol.Record())
            records[-1].ParseFromString(content)
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            break
        assert time.monotonic() < deadline, "the run was not written"
        time.sleep(0.05)

    return [
        {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]


def _records(data):
    assert data.startswith(_HEADER)
    place, content = len(_HEADER), b""

    while place + _PIECE.size <= len(data):
        room = _BLOCK - place % _BLOCK
        if room < _PIECE.size:
            place += room
            continue

        checksum, length, kind = _PIECE.unpack_from(data, place)
        if place + _PIECE.size + length > len(data):
            return  # being written
        place += _PIECE.size
        piece = data[place : place + length]
        assert checksum == zlib.crc32(piece, zlib.crc32(bytes([kind])))

        place += length
        content += piece
        if kind in (_WHOLE, _LAST):
            yield content
            content = b""
