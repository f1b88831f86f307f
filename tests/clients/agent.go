// What an agent in Go does with the generated client: see test_clients.py.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"path"
	"time"

	stateroom "example.invalid/stateroom/client"
)

const thread = "client-go"

func expect(response *http.Response, err error, status int) {
	var refused *stateroom.GenericOpenAPIError
	if err != nil && !errors.As(err, &refused) || response == nil || response.StatusCode != status {
		log.Fatalf("expected %d: %v %v", status, response, err)
	}
}

func main() {
	settings := stateroom.NewConfiguration()
	settings.Servers = stateroom.ServerConfigurations{{URL: os.Getenv("STATEROOM_URL")}}
	settings.AddDefaultHeader("Stateroom-Subject", "user-42")
	client := stateroom.NewAPIClient(settings)
	ctx := context.WithValue(context.Background(), stateroom.ContextAccessToken, os.Getenv("STATEROOM_API_KEY"))

	var plan, done interface{} = []string{"flight"}, []string{}
	save := stateroom.NewSaveRequest()
	save.SetState(map[string]*interface{}{"plan": &plan, "done": &done})
	save.SetAgent("client")
	saved, response, err := client.CheckpointsAPI.SaveCheckpoint(ctx, thread).SaveRequest(*save).IfNoneMatch("*").Execute()
	expect(response, err, 201)

	loaded, response, err := client.CheckpointsAPI.LoadCheckpoint(ctx, thread, "latest").Execute()
	expect(response, err, 200)
	if loaded.CheckpointId != saved.CheckpointId {
		log.Fatal("another checkpoint is loaded than was saved")
	}

	patch := stateroom.NewSaveRequest()
	changes := stateroom.NewChanges()
	changes.SetAppend(map[string][]interface{}{"done": {"flight"}})
	patch.SetChanges(*changes)
	change := client.CheckpointsAPI.SaveCheckpoint(ctx, thread).SaveRequest(*patch).IfMatch(`"` + saved.CheckpointId + `"`)
	_, response, err = change.Execute()
	expect(response, err, 201)
	_, response, err = change.Execute()
	expect(response, err, 412)
	var refused *stateroom.GenericOpenAPIError
	if !errors.As(err, &refused) {
		log.Fatalf("no problem: %v", err)
	}
	if problem, ok := refused.Model().(stateroom.Problem); !ok || problem.Code != "head-moved" {
		log.Fatalf("another problem: %v", refused.Model())
	}

	name := path.Join(os.TempDir(), fmt.Sprintf("stateroom-pass-%d.txt", os.Getpid()))
	if err := os.WriteFile(name, []byte("boarding pass"), 0o600); err != nil {
		log.Fatal(err)
	}
	defer os.Remove(name)
	file, err := os.Open(name)
	if err != nil {
		log.Fatal(err)
	}
	artifact, response, err := client.ArtifactsAPI.CreateArtifact(ctx, thread).StateroomArtifactName("pass.txt").Body(file).Execute()
	expect(response, err, 201)
	if artifact.SizeBytes != 13 {
		log.Fatal("another file was stored than was sent")
	}

	// The call has two shapes of answers (200 the thread, 202 the job), of which the generator knows one: Location says where the job is.
	_, response, _ = client.ArchivesAPI.ArchiveThread(ctx, thread).Execute()
	expect(response, nil, 202)
	for {
		job, answer, err := client.KeysAPI.GetJob(ctx, path.Base(response.Header.Get("Location"))).Execute()
		expect(answer, err, 200)
		if job.State == "done" {
			break
		}
		if job.State == "failed" {
			log.Fatal(job.Error)
		}
		time.Sleep(200 * time.Millisecond)
	}
	fmt.Println("held")
}
