"""A number is a label: when the newest version's is used again, nothing that named the old bytes gives the new ones."""

from dataclasses import replace
from uuid import uuid4

from tests.support.operations import assert_problem
from tests.support.production import serving


async def test_nothing_that_named_a_deleted_version_gives_the_one_with_its_number(deployment, launcher, s3_server):
    with_files = replace(deployment, environ=deployment.environ | {"STATEROOM_S3_URL": s3_server.url()})
    async with serving(launcher, with_files) as gateway, gateway.client() as client:
        path, headers = f"/v1/threads/{uuid4()}/artifacts", {"Stateroom-Artifact-Name": "report"}
        for content in (b"first", b"old"):
            old = (await client.post(path, content=content, headers=headers)).json()
        old_etag = (await client.get(f"/v1/artifacts/{old['artifact_id']}/content")).headers["etag"]
        url = (await client.post(f"/v1/artifacts/{old['artifact_id']}/urls", json={})).json()["url"]
        assert (await client.delete(f"/v1/artifacts/{old['artifact_id']}")).status_code == 204

        new = (await client.post(path, content=b"new", headers=headers)).json()
        assert (new["name"], new["version"]) == (old["name"], old["version"]) == ("report", 2)
        assert new["artifact_id"] != old["artifact_id"]
        assert new["pointer"] != old["pointer"]
        assert_problem(await client.get(f"/v1/artifacts/{old['artifact_id']}/content"), 404, "artifact-not-found")
        assert (await client.get(f"{gateway.url}/v1/artifact-urls/{url.rpartition('/')[2]}")).status_code == 403
        answer = await client.get(f"/v1/artifacts/{new['artifact_id']}/content", headers={"If-None-Match": old_etag})
        assert (answer.status_code, answer.content) == (200, b"new")
        assert answer.headers["etag"] != old_etag
        ranged = {"Range": "bytes=0-0", "If-Range": old_etag}
        assert (await client.get(f"/v1/artifacts/{new['artifact_id']}/content", headers=ranged)).status_code == 200
