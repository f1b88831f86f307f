"""Statements that walk through a subject's sealed vectors which shall be in clear, too."""

import msgspec

from storage.postgres.statement import Statement


class VectorsPlace(msgspec.Struct, frozen=True, order=True):
    """Where vectors are."""

    path_id: bytes = b""
    key_id: bytes = b""
    model_id: bytes = b""


# What is under a client's share is left out: only its client opens it.
PLACES_AFTER = Statement(
    """
SELECT v.path_id, v.key_id, v.model_id FROM stateroom.item_vectors v
JOIN stateroom.item_paths p ON p.tenant_id = :tenant_id AND p.subject_id = :subject_id AND p.path_id = v.path_id
WHERE v.tenant_id = :tenant_id AND v.subject_id = :subject_id AND p.share_check IS NULL
  AND (v.path_id, v.key_id, v.model_id) > (:path_id, :key_id, :model_id)
ORDER BY v.path_id, v.key_id, v.model_id LIMIT :page_rows
""",
    VectorsPlace,
)
