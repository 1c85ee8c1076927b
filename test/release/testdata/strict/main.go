// Strict reads Kubernetes manifests into the types of the Kubernetes API, and refuses
// unknown fields. It is built in a module of its own.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	data, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	for _, document := range bytes.Split(data, []byte("\n---\n")) {
		var kind struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal(document, &kind); err != nil {
			panic(err)
		}
		into := map[string]any{"v1 ConfigMap": &core.ConfigMap{}, "apps/v1 Deployment": &apps.Deployment{}, "networking.k8s.io/v1 NetworkPolicy": &networking.NetworkPolicy{}}[kind.APIVersion+" "+kind.Kind]
		if into == nil {
			panic(fmt.Sprintf("unknown kind %+v", kind))
		}
		if err := yaml.UnmarshalStrict(document, into); err != nil {
			panic(fmt.Sprintf("%+v: %v", kind, err))
		}
	}
}
