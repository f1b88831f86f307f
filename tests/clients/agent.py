"""What an agent does with the generated Python client: see test_clients.py."""

import io
import os
import sys
import time

from stateroom_client import AuthenticatedClient
from stateroom_client.api.archives import archive_thread
from stateroom_client.api.artifacts import create_artifact
from stateroom_client.api.checkpoints import load_checkpoint, save_checkpoint
from stateroom_client.api.keys import get_job
from stateroom_client.models import Job, Problem, SaveCheckpointIfNoneMatch, SaveRequest
from stateroom_client.types import File

THREAD = "client-py"
client = AuthenticatedClient(
    os.environ["STATEROOM_URL"], os.environ["STATEROOM_API_KEY"], headers={"Stateroom-Subject": "user-42"}
)

body = SaveRequest.from_dict({"state": {"plan": ["flight"], "done": []}, "agent": "client"})
saved = save_checkpoint.sync_detailed(THREAD, client=client, body=body, if_none_match=SaveCheckpointIfNoneMatch("*"))
assert saved.status_code == 201, saved
first = saved.parsed.checkpoint_id

loaded = load_checkpoint.sync(THREAD, "latest", client=client)
assert loaded.checkpoint_id == first
assert loaded.state.to_dict() == {"plan": ["flight"], "done": []}

patch = SaveRequest.from_dict({"changes": {"append": {"done": ["flight"]}}})
answers = [save_checkpoint.sync_detailed(THREAD, client=client, body=patch, if_match=f'"{first}"') for _ in range(2)]
assert [answer.status_code for answer in answers] == [201, 412]
assert isinstance(answers[1].parsed, Problem)
assert answers[1].parsed.code == "head-moved"

content = File(io.BytesIO(b"boarding pass"))
stored = create_artifact.sync(THREAD, client=client, body=content, stateroom_artifact_name="pass.txt")
assert stored.size_bytes == 13, stored

job = archive_thread.sync(THREAD, client=client)
while isinstance(job, Job) and job.state != "done":
    assert job.state != "failed", job
    time.sleep(0.2)
    job = get_job.sync(job.job_id, client=client)
assert isinstance(job, Job), job
sys.stdout.write("held\n")
